"""Compares what the files of one engine say of each other. Pure: facts in, findings out.

The log is the evidence; cursor, core file and progress are derived from it or from what subscribers did. Where two disagree, the
finding stands at the one that is believed less.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise

from quiver_actors.store.files.core_file import CORE_NAME, CORE_TABLE, CoreFile
from quiver_actors.store.files.paths import EnginePaths, segment_seq_of
from quiver_actors.store.inspection.findings import Finding, Severity, damage, note, warning
from quiver_actors.store.inspection.views import LogView, SegmentView
from quiver_actors.store.subscriber.progress import PROGRESS_TABLE, SegmentProgress, SubscriberProgress
from quiver_actors.store.wal import layout
from quiver_actors.store.wal.layout import CURSOR_NAME

_RAISED_AT_OPEN = "nothing: numbers go on behind all that are in use at the next open"


@dataclass(slots=True)
class EngineFacts:
    """Result of one look at one engine's directory. Paths are as people know them."""

    paths: EnginePaths
    logs: dict[str, LogView] = field(default_factory=dict)
    """The logs by path, in the order of their numbers."""
    segments: dict[int, SegmentView] = field(default_factory=dict)
    segment_files: dict[int, str] = field(default_factory=dict)
    """Paths of all segment files, readable or not."""
    progress: dict[str, SubscriberProgress] = field(default_factory=dict)
    """The contents of progress files, by path."""
    core: CoreFile | None = None
    cursor: int | None = None
    quarantined: list[str] = field(default_factory=list)
    """The names of files in quarantine/."""

    @property
    def unsealed(self) -> set[int]:
        """Numbers of the segments that are still logs."""
        return {log.segment_seq for log in self.logs.values() if log.segment_seq is not None}

    @property
    def next_segment_seq(self) -> int:
        """The lowest segment number that is not used yet, as far as the files say."""
        used = [*self.segment_files, *self.unsealed]
        exact = self.core.next_segment_seq_reserved if self.core and self.core.clean_shutdown else 0
        return max(max(used, default=-1) + 1, exact)


def cross_check(facts: EngineFacts) -> list[Finding]:
    """Find all contradictions between the files of one engine's directory."""
    return [
        *_log_chain(facts),
        *_duplicate_bundles(facts),
        *_origin(facts),
        *_numbers(facts),
        *_cursor(facts),
        *_progress(facts),
    ]


def _log_chain(facts: EngineFacts) -> Iterator[Finding]:
    """Findings where a log does not start at the position where the one before it ended, or where a segment goes on from there."""
    if any(log.position_start is None for log in facts.logs.values()):
        return
    logs = sorted(facts.logs.items(), key=lambda item: item[1].position_start or 0)
    yield from _missing_before(facts, logs)
    for (path, log), (_, behind) in pairwise(logs):
        end, start = _covered_until(facts, log.position_end or 0), behind.position_start or 0
        if end >= start:
            continue
        is_ours = log.segment_seq is not None and behind.segment_seq is not None
        yield Finding(
            severity=Severity.DAMAGE if is_ours else Severity.WARNING,
            code="log.gap",
            path=path,
            offset=log.written_end,
            message=f"{start - end} bytes of entries are missing behind this file{_what_is_missing(log, behind)}",
            expected=f"entries up to position {start}",
            found=f"position {end}",
            action="its last entries, or a whole log file behind it, are gone: look for them before the node is started",
        )


def _what_is_missing(log: LogView, behind: LogView) -> str:
    """Which segments logs that are gone would have become, and how many bundles."""
    if log.segment_seq is None or behind.segment_seq is None or behind.segment_seq <= log.segment_seq + 1:
        return ""
    first, last = log.segment_seq + 1, behind.segment_seq - 1
    segments = f"segment {first}" if first == last else f"segments {first} to {last}"
    end = log.next_sequence if log.last_sequence is None else log.last_sequence + 1
    count = (behind.next_sequence or 0) - (end or 0)
    return f": the log of {segments} with {count} bundles" if count > 0 else f": the log of {segments}"


def _missing_before(facts: EngineFacts, logs: list[tuple[str, LogView]]) -> Iterator[Finding]:
    """Findings where logs do not go on at the cursor, the end of what is sealed. It may lag, so this alone proves nothing."""
    if not logs or facts.cursor is None:
        return
    path, first = logs[0]
    reached = _covered_until(facts, facts.cursor)
    if reached < (first.position_start or 0):
        yield warning(
            "log.missing_before",
            path,
            layout.HEADER_TABLE.offsets["wal_position_start"],
            "a log file before this one may be missing: the cursor stands before its start, and no segment between",
            action="look for quiver.wal.<N> files that were moved away",
            expected=f"position {reached}",
            found=f"position {first.position_start}",
        )


def _covered_until(facts: EngineFacts, position: int) -> int:
    """How far segments go on without a gap from a position."""
    spans = ((view.position_start, view.position_end) for view in facts.segments.values())
    for start, end in sorted((start, end) for start, end in spans if start is not None and end is not None):
        if start <= position < end:
            position = end
    return position


def _duplicate_bundles(facts: EngineFacts) -> Iterator[Finding]:
    """Findings where a sequence is in two segments, or a log carries the number of a segment that is there."""
    ranges = sorted(
        (view.first_sequence, view.last_sequence, segment_seq)
        for segment_seq, view in facts.segments.items()
        if view.first_sequence is not None and view.last_sequence is not None
    )
    for (_, last, earlier), (first, _, later) in pairwise(ranges):
        if first <= last:
            yield warning(
                "segment.overlap",
                facts.segment_files[later],
                None,
                f"holds sequences that segment {earlier} holds too: those bundles are delivered twice",
                action="find out who copied a file into segments/",
                expected=f"sequences above {last}",
                found=f"sequences from {first} on",
            )
    for path, log in facts.logs.items():
        if log.segment_seq is not None and log.segment_seq in facts.segments:
            yield _sealed_already(path, log, facts.segments[log.segment_seq])
        elif log.segment_seq is None and log.entry_count:
            yield note(
                "log.other_writer",
                path,
                None,
                f"holds entries of another writer: {log.entry_count}",
                action="nothing: the next start adopts those behind that writer's cursor, or all where the cursor is not its own",
            )


def _sealed_already(path: str, log: LogView, segment: SegmentView) -> Finding:
    """The log has the number of a segment: which of its entries that segment holds, and what the next start does with the others."""
    message = f"segment {log.segment_seq}, which this log became, is there"
    action = "nothing: the next open removes the log"
    if segment.incarnation is None:
        message = (
            f"another writer has made segment {log.segment_seq}, the number of this log of {log.entry_count} entries"
        )
        action = "nothing: the next start compares the bundles, and adopts the entries that the segment does not hold"
    elif log.last_sequence is not None and log.last_sequence > (segment.last_sequence or 0):
        message += f", but ends at sequence {segment.last_sequence}, and the log at {log.last_sequence}"
        action = "nothing: the next start adopts the entries that the segment does not hold"
    return note("log.sealed_already", path, None, message, action=action)


def _origin(facts: EngineFacts) -> Iterator[Finding]:
    """Findings where something was not written in this directory, for this core."""
    core = facts.core
    if core is None:
        return
    own = core.incarnation.hex()
    written = {facts.segment_files[seq]: view.incarnation for seq, view in facts.segments.items()}
    written |= {path: log.incarnation for path, log in facts.logs.items()}
    for path, incarnation in written.items():
        if incarnation not in (None, own):
            yield warning(
                "file.origin",
                path,
                None,
                "was written in another directory, or before this one lost its core file",
                expected=f"incarnation {own}",
                found=str(incarnation),
            )
    name = facts.paths.root.rpartition("/")[2]
    digits = name.removeprefix("core_")
    if name != digits and digits.isdigit() and int(digits) != core.core_id:
        yield warning(
            "core.id",
            f"{facts.paths.root}/{CORE_NAME}",
            CORE_TABLE.offsets["core_id"],
            "the directory has another core's name",
            expected=f"core {int(digits)}",
            found=f"core {core.core_id}",
        )


def _numbers(facts: EngineFacts) -> Iterator[Finding]:
    """Findings where the core file, which reserves numbers ahead of use, is behind: then it is older than the rest."""
    core = facts.core
    if core is None:
        return
    path = f"{facts.paths.root}/{CORE_NAME}"
    used = max([*facts.segment_files, *facts.unsealed], default=-1)
    # The clean shutdown's empty log carries the next number, which no bundle has yet.
    logs = [log for log in facts.logs.values() if log.entry_count]
    if not logs and not core.clean_shutdown:
        used = max(facts.segment_files, default=-1)
    limit = core.next_segment_seq_reserved
    if used > limit or (used == limit and used in facts.segment_files):
        yield _behind_use(path, "next_segment_seq_reserved", "segment numbers", f"above {used}", limit)
    lasts = [view.last_sequence for view in facts.segments.values()] + [log.last_sequence for log in logs]
    sequences = [last for last in lasts if last is not None]
    if max(sequences, default=-1) >= core.next_sequence_reserved:
        yield _behind_use(
            path, "next_sequence_reserved", "sequences", f"above {max(sequences)}", core.next_sequence_reserved
        )
    if core.clean_shutdown and logs:
        yield warning(
            "core.clean",
            path,
            CORE_TABLE.offsets["clean_shutdown"],
            "says that the last shutdown was clean, but logs with entries are there",
            action="nothing: the next open seals them",
            expected="no entries in wal/",
            found=f"{sum(log.entry_count for log in logs)} entries",
        )


def _behind_use(path: str, field: str, what: str, expected: str, found: int) -> Finding:
    return warning(
        "core.behind",
        path,
        CORE_TABLE.offsets[field],
        f"is older than the rest: {what} that are in use are not reserved",
        action=_RAISED_AT_OPEN,
        expected=expected,
        found=str(found),
    )


def _cursor(facts: EngineFacts) -> Iterator[Finding]:
    """Findings where the cursor stands behind entries that only the log has: it should stand where the segments end."""
    if facts.cursor is None:
        return
    for path, log in facts.logs.items():
        if log.position_start is None or log.position_end is None or not log.entry_count:
            continue
        is_sealed = log.segment_seq in facts.segments
        passed = facts.cursor > (log.position_start if log.segment_seq is not None else log.position_end)
        if passed and not is_sealed and (log.segment_seq is not None or path == list(facts.logs)[-1]):
            yield warning(
                "cursor.ahead",
                f"{facts.paths.wal}/{CURSOR_NAME}",
                layout.CURSOR_TABLE.offsets["wal_position"],
                f"is ahead of the entries in {path}, which no segment has",
                action="nothing for logs of ours, which are sealed whatever it says; another writer's entries would be skipped",
                expected=f"at most {log.position_start}",
                found=str(facts.cursor),
            )


# --- progress ------------------------------------------------------------------------------------------------------------------


def _progress(facts: EngineFacts) -> Iterator[Finding]:
    for path, progress in facts.progress.items():
        for segment_seq, entry in sorted(progress.entries.items()):
            yield from _progress_entry(facts, path, segment_seq, entry)
        limit = facts.core.next_segment_seq_reserved if facts.core else None
        if limit is not None and progress.watermark > limit:
            yield warning(
                "progress.ahead",
                path,
                PROGRESS_TABLE.offsets["oldest_incomplete_seg"],
                "counts segments as done that were never given out: it is newer than the rest",
                action=_RAISED_AT_OPEN,
                expected=f"at most {limit}",
                found=str(progress.watermark),
            )


def _progress_entry(facts: EngineFacts, path: str, segment_seq: int, entry: SegmentProgress) -> Iterator[Finding]:
    view = facts.segments.get(segment_seq)
    if view is not None and entry.bundle_count > view.bundle_count:
        yield damage(
            "progress.bundle_count",
            path,
            None,
            f"knows of more bundles than segment {segment_seq} has",
            action="one of the two files is not from here: find out who restored or copied it",
            expected=f"at most {view.bundle_count} bundles",
            found=f"{entry.bundle_count} bundles",
        )
    is_there = segment_seq in facts.segment_files or segment_seq in facts.unsealed
    if not is_there and segment_seq < facts.next_segment_seq and not entry.is_complete:
        yield _missing_segment(facts, path, segment_seq, entry)


def _missing_segment(facts: EngineFacts, path: str, segment_seq: int, entry: SegmentProgress) -> Finding:
    owed = entry.bundle_count - int.from_bytes(entry.bitmap, "little").bit_count()
    moved = [name for name in facts.quarantined if segment_seq_of(name.rpartition(".")[0]) == segment_seq]
    if moved:
        return warning(
            "progress.quarantined_segment",
            path,
            None,
            f"waits for {owed} bundles of segment {segment_seq}, which was moved to quarantine/{moved[0]}",
            action="nothing: the subscriber is told by a gap notice; `quiver export-segment` saves what can still be read",
        )
    return damage(
        "progress.missing_segment",
        path,
        None,
        f"waits for {owed} bundles of segment {segment_seq}, whose file is gone",
        action="put the file back before the node is started; else the subscriber is told by a gap notice what it loses",
        expected=f"{facts.paths.segment(segment_seq)}",
        found="no such file",
    )
