"""Deleting files on the cold disk of one engine. Blocking.

Runs on the thread for the cold disk. A whole file of a segment that nobody knows is never deleted: it may be a leftover of a copy, or what
a data directory has moved there of which this one is an older state. It gets another name.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Sequence

from quiver_actors.store.files.cold_directory import ColdDirectory
from quiver_actors.store.files.cold_owner import HotOwner
from quiver_actors.store.jobs.cold import ColdJob, log_stray
from quiver_actors.supervisor.log import log_event


class ColdDeleteJob(ColdJob):
    """Delete files that nobody needs, and with `keeps` what copies that were cut off have left of segments that are not among them."""

    def __init__(self, directory: ColdDirectory, segment_seqs: Sequence[int], keeps: Collection[int] | None) -> None:
        super().__init__(directory)
        self.segment_seqs = segment_seqs
        self.keeps = keeps

    def work(self) -> None:
        """Delete; durable on return."""
        directory = self.directory
        with directory.owned() as disk:
            if self.segment_seqs:
                directory.delete(disk, sorted(self.segment_seqs))
            if self.keeps is None:
                return
            unknown = [seq for seq in directory.listed(disk) if seq not in self.keeps and seq not in self.segment_seqs]
            for path in directory.clear(disk, unknown):
                log_stray(path, "no segment of this data directory is there: delete it, unless another node needs it")


class ColdRemoveJob(ColdJob):
    """Delete what a deleted topic had. Where the cold disk is away, or another data directory has taken the directory over, or something
    unknown is in it, a log line names the directory that is left."""

    def __init__(self, directory: ColdDirectory, hot: HotOwner, known: Collection[int]) -> None:
        """
        Args:
            hot: what the data directory, which may be gone when the job runs, says of the owner.
            known: numbers of all segments of which the topic may have a file there.
        """
        super().__init__(directory)
        self._hot = hot
        self._known = known

    def run(self) -> None:
        """Delete; a fault is logged."""
        super().run()
        if self.fault:
            log_event("cold.left", {"path": str(self.directory), "reason": self.fault}, logging.WARNING)

    def work(self) -> None:
        """Delete the segments, then what names the directory."""
        directory = self.directory
        with directory.taking(self._hot) as disk:
            known = [seq for seq in directory.listed(disk) if seq in self._known]
            directory.delete(disk, known)
            for path in directory.clear(disk, directory.listed(disk)):
                log_stray(path, "the topic was deleted, and did not know it: delete it, unless another node needs it")
            directory.forget(disk)
