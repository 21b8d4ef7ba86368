"""Progress and gap notices at open. If a file cannot be read, its subscriber stays known and loses no bundle silently.

Owner: one `Recovery`.
"""

from __future__ import annotations

from collections.abc import Collection, Container, Iterable, Mapping
from functools import partial

import msgspec

from quiver_actors.base.core_dirs import core_of
from quiver_actors.base.rights import OF_TOPICS_OWNER, Ownership
from quiver_actors.errors import DiskError, FormatError, QuiverError
from quiver_actors.store.disk.protocol import Disk, write_atomically
from quiver_actors.store.disk.salvage import read_small
from quiver_actors.store.files.paths import EnginePaths
from quiver_actors.store.files.quarantine import keep_in_quarantine
from quiver_actors.store.format.framing import DAMAGE
from quiver_actors.store.jobs.records import bring_up
from quiver_actors.store.recovery.findings import Findings
from quiver_actors.store.recovery.missing_logs import MissingLog
from quiver_actors.store.segment.stored_manifest import entry_sizes_of
from quiver_actors.store.subscriber import losses
from quiver_actors.store.subscriber.claims import SubscriberState
from quiver_actors.store.subscriber.gaps import GapLedger, decode_gaps, gaps_file_name
from quiver_actors.store.subscriber.progress import (
    SubscriberProgress,
    decode_progress,
    encode_progress,
    progress_file_name,
    subscriber_of,
)
from quiver_actors.store.subscriber.progress_journal import (
    JOURNAL_NAME,
    JournalRecord,
    current_content,
    decode_progress_journal,
)
from quiver_actors.store.subscriber.registry import SubscriberRegistry
from quiver_actors.store.subscriber.sizes import BundleSizes

_NOTHING_RESOLVED = SubscriberProgress(oldest_incomplete_seg=0, entries={}, trusted_watermark=True)


class FoundSubscribers:
    """The subscribers whose files one start finds, with their progress and their gap notices.

    Attributes:
        registry: every subscriber that has a progress file.
        bare: the watermarks of progress files that name no segment, by subscriber.
        watermark_max: the highest of all watermarks.
    """

    def __init__(self, disk: Disk, paths: EnginePaths, findings: Findings) -> None:
        self.registry = SubscriberRegistry(partial(_bundle_sizes, disk, paths))
        self.bare: dict[str, int] = {}
        self.watermark_max = 0
        self._disk = disk
        self._paths = paths
        self._findings = findings
        self._damaged: list[tuple[str, str, GapLedger]] = []
        """Subscribers whose progress file is damaged, why, and their notices."""
        self._by_other_writer: set[str] = set()
        """Subscribers whose progress another writer has written."""
        self._damaged_gaps: list[tuple[str, str]] = []
        """Damaged files of notices, and why."""
        self._journal_damage = ""
        """The reason why the journal of progress counts as damaged; empty if it is whole."""
        self._behind: dict[str, bytes] = {}
        """What progress files must become, by their path: the journal is ahead of them."""

    def read(self, names: Collection[str]) -> None:
        """Read the files, and change nothing.

        Args:
            names: what is in the root.

        Raises:
            UnsupportedVersion: a file is of a newer program.
        """
        journal = self._read_journal(names)
        for name in names:
            subscriber = subscriber_of(name)
            if subscriber is None:
                continue
            gaps = self._read_gaps(subscriber, names)
            try:
                progress = decode_progress(self._read_progress(self._paths.in_root(name), journal.get(subscriber)))
            except DAMAGE as error:
                self._damaged.append((subscriber, str(error), gaps))
                continue
            self.registry.load(subscriber, progress, gaps)
            if progress.by_other_writer:
                self._by_other_writer.add(subscriber)
                continue
            self.watermark_max = max(self.watermark_max, progress.watermark)
            if progress.trusted_watermark and not progress.entries:
                self.bare[subscriber] = progress.watermark

    def _read_journal(self, names: Container[str]) -> Mapping[str, JournalRecord]:
        """The last record of each subscriber, as far as the journal can be read: what is lost of it is delivered once more."""
        if JOURNAL_NAME not in names:
            return {}
        try:
            journal = decode_progress_journal(read_small(self._disk, self._paths.progress_journal))
        except DAMAGE as error:
            self._journal_damage = str(error)
            return {}
        if journal.is_damaged:
            self._journal_damage = "a frame is damaged that has whole frames behind it"
        return journal.latest

    def _read_progress(self, path: str, record: JournalRecord | None) -> bytes:
        """What the file says, or what the journal says that it is to become."""
        content = read_small(self._disk, path)
        current = current_content(content, record)
        if current is not content:
            self._behind[path] = current
        return current

    def bring_up(self) -> None:
        """Write what only the journal says into the progress files, and put the journal away. Before temporary files are reaped."""
        if self._journal_damage:
            path = self._paths.progress_journal
            kept_as = keep_in_quarantine(self._disk, self._paths, path)
            self._findings.note_quarantined(path, kept_as, self._journal_damage)
        if self._behind or self._journal_damage:
            bring_up(self._disk, self._paths, self._behind.items())

    def own_states(self) -> list[SubscriberState]:
        """Subscribers whose progress speaks of segments by numbers of ours."""
        return [state for state in self.registry if state.subscriber not in self._by_other_writer]

    def renumber(self, segment_seq: int, new_segment_seq: int, bundle_count: int) -> None:
        """A segment of another writer has another number now: what that writer says of it holds on."""
        for state in self.registry:
            if state.subscriber in self._by_other_writer:
                state.progress.renumber(segment_seq, new_segment_seq, bundle_count)

    def settle(self) -> None:
        """Move damaged files out of the way."""
        for path, why in self._damaged_gaps:
            self._findings.quarantine(path, why)
        for subscriber, why, gaps in self._damaged:
            self._start_over(subscriber, self._paths.in_root(progress_file_name(subscriber)), why, gaps)

    def follow_other_cores(self) -> None:
        """Make known, durably, whoever is known on another core of the topic. For a core that stores nothing: it may be new, or have come
        back, and what is pushed to it is owed to everybody from the first bundle on, also before he has connected to it."""
        new = sorted(self._known_elsewhere() - {state.subscriber for state in self.registry})
        for subscriber in new:
            state = self.registry.register(subscriber, (0, 0), self._ownership_elsewhere(subscriber))
            path = self._paths.in_root(progress_file_name(subscriber))
            write_atomically(self._disk, path, encode_progress(state.progress.snapshot(0)))
        if new:
            self._disk.sync_directory(self._paths.root)
            self._findings.notes.append(f"known from other cores: {', '.join(new)}")

    def _known_elsewhere(self) -> set[str]:
        names = [name for other in self._other_cores() for name in self._disk.list_directory(other)]
        return {subscriber for name in names if (subscriber := subscriber_of(name)) is not None}

    def _other_cores(self) -> list[str]:
        """Directories of the topic's other cores."""
        topic, _, own = self._paths.root.rpartition("/")
        names = self._disk.list_directory(topic or ".")
        return [f"{topic}/{name}" for name in names if core_of(name) is not None and name != own]

    def _ownership_elsewhere(self, subscriber: str) -> Ownership:
        """The owner of a subscriber and its sharers, as far as the topic's other cores tell.

        It is the topic's owner's if no file tells, or if one says so: the topic's owner has taken it over from a guest then, and a core
        that does not know that yet must not pass on the guest's rights.
        """
        found = []
        for other in self._other_cores():
            try:
                content = read_small(self._disk, f"{other}/{progress_file_name(subscriber)}")
                found.append(decode_progress(content).ownership)
            except (DiskError, FormatError):
                # Another core's file may go at any time, and its damage is that core's business.
                continue
        return next((each for each in found if each.owner_uid is None), found[0] if found else OF_TOPICS_OWNER)

    def note_counts(self, counts: Mapping[int, int]) -> None:
        """Note how many bundles segments had that are gone, for subscribers whose progress names them."""
        for state in self.registry:
            for segment_seq, bundle_count in counts.items():
                if state.progress.awaited.bundle_count(segment_seq):
                    state.progress.awaited.add(segment_seq, bundle_count, 0)

    def give_up_logs(self, missing: Iterable[MissingLog]) -> None:
        """Record logs as lost: durable notices tell everybody who was owed something of their segments."""
        missing = list(missing)
        self.give_up_each({state.subscriber: missing for state in self.registry})

    def give_up_each(self, missing: Mapping[str, Iterable[MissingLog]]) -> None:
        """Record logs as lost as `give_up_logs` does, where not everybody loses the same: by subscriber."""
        losing = [
            state
            for state in self.registry
            if [run for each in missing.get(state.subscriber, ()) for run in losses.lose_unsealed(state, *each)]
        ]
        for state in losing:
            content = state.gaps.encode(state.progress.changes.filed_version)
            write_atomically(self._disk, self._paths.in_root(gaps_file_name(state.subscriber)), content)
        self._disk.sync_directory(self._paths.root)
        for state in losing:
            state.gaps.mark_flushed(state.gaps.changes.version)

    def _start_over(self, subscriber: str, path: str, why: str, gaps: GapLedger) -> None:
        """Keep a subscriber whose progress is damaged, from the beginning: at least once, never silently less. What its notices name stays
        lost.

        Its file is replaced and not moved, so that no crash leaves the subscriber unknown.
        """
        nothing = msgspec.structs.replace(_NOTHING_RESOLVED, ownership=self._ownership_elsewhere(subscriber))
        state = self.registry.load(subscriber, nothing, gaps)
        kept_as = keep_in_quarantine(self._disk, self._paths, path)
        write_atomically(self._disk, path, encode_progress(state.progress.snapshot(0)))
        state.progress.changes.note()  # as of whoever is known from other cores
        self._disk.sync_directory(self._paths.root)
        self._findings.note_quarantined(path, kept_as, why)

    def _read_gaps(self, subscriber: str, names: Container[str]) -> GapLedger:
        name = gaps_file_name(subscriber)
        if name not in names:
            return GapLedger()
        path = self._paths.in_root(name)
        try:
            return decode_gaps(read_small(self._disk, path))
        except DAMAGE as error:
            self._damaged_gaps.append((path, str(error)))
            return GapLedger()


def _bundle_sizes(disk: Disk, paths: EnginePaths, segment_seq: int) -> BundleSizes | None:
    """Exact sizes of a sealed segment's bundles; None where its manifest does not say, or cannot be read now."""
    try:
        file = disk.open_read(paths.segment(segment_seq))
        try:
            sizes_bytes = entry_sizes_of(file)
        finally:
            file.close()
    except QuiverError:
        return None
    return None if sizes_bytes is None else BundleSizes(1, sizes_bytes)
