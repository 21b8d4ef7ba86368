"""The journal of the progress of an engine's subscribers: what is durable in it and not in the progress files yet.

Owner: the engine's `Progress`, on the loop thread. One append and one sync make the progress of many subscribers durable. The files are
brought up behind it: when it is large or old, when something waits for the files, and at a stop.

A record of the journal goes on from a progress file as it is on the disk, so a subscriber whose file this process has not written gets its
file first.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence

from quiver_actors.base.rights import Ownership
from quiver_actors.base.units import MIB, SECOND_NS
from quiver_actors.store.disk.protocol import Disk
from quiver_actors.store.files.paths import EnginePaths
from quiver_actors.store.jobs.records import BringUpJob, JournalJob, ProgressWrite
from quiver_actors.store.subscriber.claims import SubscriberState
from quiver_actors.store.subscriber.progress_journal import (
    MARKER_BYTES,
    JournalRecord,
    base_of,
    encode_frame,
    encode_header,
)

JOURNAL_BYTES_MAX = 8 * MIB
"""The files are brought up before the journal passes this size; flushes that alone would pass it write the files."""
JOURNAL_AGE_NS = 10 * SECOND_NS
"""How long the progress files may lag behind the journal: that is what a program that does not know it delivers again after a kill."""


class ProgressJournal:
    """What the journal holds, and from which files it goes on.

    Attributes:
        due_ns: when the files are to be brought up for its age; None while there is no journal.
    """

    def __init__(self, disk: Disk, paths: EnginePaths) -> None:
        self.due_ns: int | None = None
        self._disk = disk
        self._paths = paths
        self._marker = b""
        self._size_bytes = 0
        self._latest: dict[str, ProgressWrite] = {}
        self._filed: dict[str, tuple[int, Ownership]] = {}
        """The checksum and the owner in each progress file on the disk, by subscriber."""

    @property
    def is_open(self) -> bool:
        """Whether there is a journal, which is newer than the files."""
        return self.due_ns is not None

    def takes(self, states: Sequence[SubscriberState]) -> bool:
        """Whether the progress of these subscribers may be appended. A lone subscriber's file costs as little as a journal, and is what
        every program reads. Owners go to the files at once: other cores read them there."""
        if len(states) < 2 and not self.is_open:
            return False
        return all(
            state.subscriber in self._filed and self._filed[state.subscriber][1] == state.progress.ownership
            for state in states
        )

    def append_job(self, writes: Sequence[ProgressWrite], ticket: int) -> JournalJob | None:
        """Return the job that appends progress; None if the journal would be too large by it."""
        if not writes:
            return JournalJob(self._disk, self._paths, writes, ticket, b"", self._size_bytes)
        marker = self._marker if self.is_open else os.urandom(MARKER_BYTES)
        frame = encode_frame(
            marker,
            (
                JournalRecord(write.subscriber, self._filed[write.subscriber][0], write.content)
                for write in writes
                if write.content is not None
            ),
        )
        content = frame if self.is_open else encode_header(marker) + frame
        if self._size_bytes + len(content) > JOURNAL_BYTES_MAX:
            return None
        self._marker = marker
        return JournalJob(self._disk, self._paths, writes, ticket, content, self._size_bytes)

    def finish_append(self, job: JournalJob, now_ns: int) -> None:
        """Note what an append has made durable."""
        if not self.is_open and job.content:
            self.due_ns = now_ns + JOURNAL_AGE_NS
        self._size_bytes += len(job.content)
        self._latest.update((write.subscriber, write) for write in job.writes)

    def bring_up_job(self, ticket: int) -> BringUpJob:
        """Return the job that brings the files up to the journal, whoever is still registered: until the journal is gone, what it says
        holds."""
        self.forget_files(self._latest)
        return BringUpJob(self._disk, self._paths, list(self._latest.values()), ticket)

    def finish_bring_up(self, job: BringUpJob) -> None:
        """Note that the files say what the journal said, and that it is deleted."""
        self.note_files(job.writes)
        self._latest.clear()
        self._size_bytes, self.due_ns = 0, None

    def forget_files(self, subscribers: Iterable[str]) -> None:
        """Forget what these files say: a job is about to write them, and may be cut off by a full disk."""
        for subscriber in subscribers:
            self._filed.pop(subscriber, None)

    def note_files(self, writes: Iterable[ProgressWrite]) -> None:
        """Note that these progress files are on the disk."""
        for write in writes:
            if write.content is not None and not write.is_gaps:
                self._filed[write.subscriber] = base_of(write.content), write.ownership
