"""Progress and gap notices at open. A file that cannot be read makes no subscriber unknown, and loses it no bundle silently.

Owner: one `Recovery`.
"""

from __future__ import annotations

from collections.abc import Collection, Container, Iterable

from quiver_actors.core_dirs import core_of
from quiver_actors.disk.protocol import Disk, write_atomically
from quiver_actors.disk.salvage import read_small
from quiver_actors.errors import FormatError, UnsupportedVersion
from quiver_actors.paths import EnginePaths
from quiver_actors.quarantine import keep_in_quarantine
from quiver_actors.recovery.findings import Findings
from quiver_actors.recovery.missing_logs import MissingLog
from quiver_actors.subscriber.gaps import GapLedger, decode_gaps, gaps_file_name
from quiver_actors.subscriber.progress import (
    SubscriberProgress,
    decode_progress,
    encode_progress,
    progress_file_name,
    subscriber_of,
)
from quiver_actors.subscriber.registry import SubscriberRegistry

_NOTHING_RESOLVED = SubscriberProgress(oldest_incomplete_seg=0, entries={}, trusted_watermark=True)


class FoundSubscribers:
    """See the module.

    Attributes:
        registry: everybody who has a progress file.
    """

    def __init__(self, disk: Disk, paths: EnginePaths, findings: Findings) -> None:
        self.registry = SubscriberRegistry()
        self._disk = disk
        self._paths = paths
        self._findings = findings
        self._damaged: list[tuple[str, str, GapLedger]] = []
        """Subscribers whose progress is, why, and their notices."""
        self._damaged_gaps: list[tuple[str, str]] = []
        """Files of notices, and why."""

    def read(self, names: Collection[str]) -> None:
        """Read the files, and change nothing.

        Args:
            names: what is in the root.

        Raises:
            UnsupportedVersion: a file is of a newer program.
        """
        for name in names:
            subscriber = subscriber_of(name)
            if subscriber is None:
                continue
            gaps = self._read_gaps(subscriber, names)
            try:
                self.registry.load(subscriber, decode_progress(read_small(self._disk, self._paths.in_root(name))), gaps)
            except UnsupportedVersion:
                raise
            except FormatError as error:
                self._damaged.append((subscriber, str(error), gaps))

    def settle(self) -> None:
        """Put what is damaged out of the way."""
        for path, why in self._damaged_gaps:
            self._findings.quarantine(path, why)
        for subscriber, why, gaps in self._damaged:
            self._start_over(subscriber, self._paths.in_root(progress_file_name(subscriber)), why, gaps)

    def follow_other_cores(self) -> None:
        """Make known, durably, whoever is known on another core of the topic. For a core that stores nothing: it may be new, or have come
        back, and what is pushed to it is owed to everybody from the first bundle on, also before he has connected to it."""
        new = sorted(self._known_elsewhere() - {state.subscriber for state in self.registry})
        for subscriber in new:
            state = self.registry.register(subscriber, "earliest", (0, 0))
            path = self._paths.in_root(progress_file_name(subscriber))
            write_atomically(self._disk, path, encode_progress(state.snapshot(0)))
        if new:
            self._disk.sync_directory(self._paths.root)
            self._findings.notes.append(f"known from other cores: {', '.join(new)}")

    def _known_elsewhere(self) -> set[str]:
        topic, _, own = self._paths.root.rpartition("/")
        others = [name for name in self._disk.list_directory(topic or ".") if core_of(name) is not None and name != own]
        names = [name for other in others for name in self._disk.list_directory(f"{topic}/{other}")]
        return {subscriber for name in names if (subscriber := subscriber_of(name)) is not None}

    def give_up_logs(self, missing: Iterable[MissingLog]) -> None:
        """Segments that there will never be: durable notices for everybody who was owed something of them."""
        losing = [state for state in self.registry if [run for each in missing for run in state.lose_unsealed(*each)]]
        for state in losing:
            content = state.gaps.encode(state.flushed_version)
            write_atomically(self._disk, self._paths.in_root(gaps_file_name(state.subscriber)), content)
        self._disk.sync_directory(self._paths.root)
        for state in losing:
            state.gaps.mark_flushed(state.gaps.version)

    def _start_over(self, subscriber: str, path: str, why: str, gaps: GapLedger) -> None:
        """Keep a subscriber whose progress is damaged, from the beginning: at least once, never silently less. What its notices name stays
        lost.

        Its file is replaced and not moved, so that no crash leaves the subscriber unknown.
        """
        state = self.registry.load(subscriber, _NOTHING_RESOLVED, gaps)
        kept_as = keep_in_quarantine(self._disk, self._paths, path)
        write_atomically(self._disk, path, encode_progress(state.snapshot(0)))
        self._disk.sync_directory(self._paths.root)
        self._findings.note_quarantined(path, kept_as, why)

    def _read_gaps(self, subscriber: str, names: Container[str]) -> GapLedger:
        name = gaps_file_name(subscriber)
        if name not in names:
            return GapLedger()
        path = self._paths.in_root(name)
        try:
            return decode_gaps(read_small(self._disk, path))
        except UnsupportedVersion:
            raise
        except FormatError as error:
            self._damaged_gaps.append((path, str(error)))
            return GapLedger()
