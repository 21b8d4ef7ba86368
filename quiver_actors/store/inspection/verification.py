"""Checking a directory or a file: every file by itself, then all files of an engine against each other.

Works beside a running node: nothing is locked, a file that vanishes was sealed or deleted, and what two files say of each other, or
a log says while it is written, counts as damage only if a second look says so too. Logs are looked at before segments, so a log
that is sealed meanwhile is met again as a segment.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from typing import Protocol, TypeVar

from quiver_actors.errors import DiskError, FormatError
from quiver_actors.store.files.core_file import CORE_NAME
from quiver_actors.store.files.data_version import (
    OLDEST_DATA_VERSION,
    VERSION_FILE,
    VERSION_TEXT_BYTES_MAX,
    encode_data_version,
    parse_data_version,
)
from quiver_actors.store.files.paths import EnginePaths
from quiver_actors.store.inspection import directory as directories
from quiver_actors.store.inspection.cold import cold_views
from quiver_actors.store.inspection.cross_check import EngineFacts, cross_check
from quiver_actors.store.inspection.findings import Finding, Severity, damage, has_damage, note, warning
from quiver_actors.store.inspection.gap_files import examine_gaps
from quiver_actors.store.inspection.logs import LogLook, examine_log
from quiver_actors.store.inspection.look import bad_sectors, look_at, unreadable
from quiver_actors.store.inspection.next_start import next_start
from quiver_actors.store.inspection.segments import SegmentLook, examine_segment
from quiver_actors.store.inspection.small_files import FixedLook, examine_core, examine_cursor, examine_progress
from quiver_actors.store.inspection.source import Source, Tree, Vanished, is_about_access
from quiver_actors.store.inspection.staged import check_prepared
from quiver_actors.store.recovery.logs import whole_footer
from quiver_actors.store.wal.layout import CURSOR_NAME, rotation_number

_LOOKS_MAX = 3


class _Look(Protocol):
    findings: list[Finding]


_T = TypeVar("_T")
_L = TypeVar("_L", bound=_Look)


@dataclass(slots=True)
class Totals:
    """How many things were looked at."""

    engines: int = 0
    files: int = 0
    segments: int = 0
    bundles: int = 0
    """The number of bundles in segments."""
    entries: int = 0
    """The number of entries in logs."""
    subscribers: int = 0


def verify(tree: Tree, path: str, *, deep: bool, totals: Totals) -> Iterator[Finding]:
    """Check a data directory, a topic's, an engine's, any directory with files of ours, or one file.

    Args:
        path: relative to the tree's root; `.` for all of it.
        totals: counted up along the way.

    Raises:
        DiskError: this user may not read it, or there is nothing of that name.
    """
    if not tree.is_directory(path):
        yield from _verify_file(tree, path, deep, totals)
        return
    yield from _check_version_file(tree, path, totals)
    engines = directories.engine_directories(tree.disk, path)
    for engine in engines:
        found = []
        for finding in verify_engine(tree, engine, deep=deep, totals=totals):
            found.append(finding)
            yield finding
        yield from next_start(tree, engine, found)
    if not engines:
        for name in directories.list_names(tree.disk, path):
            if not tree.is_directory(directories.join(path, name)):
                yield from _verify_file(tree, directories.join(path, name), deep, totals)


def verify_engine(tree: Tree, directory: str, *, deep: bool, totals: Totals) -> Iterator[Finding]:
    """Check one engine's directory."""
    yield from _EngineVerifier(tree, directory, deep, totals).run()


def _verify_file(tree: Tree, path: str, deep: bool, totals: Totals) -> Iterator[Finding]:
    with tree.open(path) as source:
        totals.files += 1
        view = look_at(source, deep=deep, limit=0)
    if view.segment is not None:
        totals.segments += 1
        totals.bundles += view.segment.bundle_count
    elif view.log is not None:
        totals.entries += view.log.entry_count
    yield from view.findings


def _check_version_file(tree: Tree, path: str, totals: Totals) -> Iterator[Finding]:
    name = directories.join(path, VERSION_FILE)
    if not tree.disk.exists(name):
        return
    try:
        with tree.open(name) as source:
            totals.files += 1
            text = source.read(VERSION_TEXT_BYTES_MAX, 0)
    except Vanished:
        return
    try:
        parse_data_version(name, text)
    except FormatError:
        yield damage(
            "version_file",
            tree.named(name),
            0,
            "the data directory is of another version, or its version file is damaged",
            action="use the program that wrote the data; if it was this one, restore the file with that text",
            expected=encode_data_version().decode().strip() + f", or a version from {OLDEST_DATA_VERSION} on",
            found=text.decode("ascii", "backslashreplace").strip(),
        )


class _EngineVerifier:
    """One check of one engine's directory."""

    def __init__(self, tree: Tree, directory: str, deep: bool, totals: Totals) -> None:
        self._tree = tree
        self._paths = EnginePaths(directory)
        self._deep = deep
        self._totals = totals

    def run(self) -> Iterator[Finding]:
        self._totals.engines += 1
        facts = self._new_facts()
        yield from self._logs(facts, self._deep, self._totals)
        yield from self._segments(facts, self._deep, self._totals)
        yield from self._small_files(facts, self._totals)
        yield from self._staged()
        yield from self._agreed(cross_check(facts))
        yield from self._left_over()

    def _staged(self) -> Iterator[Finding]:
        """Staged bundles, and what transactions, idempotent producers, other writers and the subscribers' progress have left behind.
        Prepared ones must be what was prepared."""
        records = self._paths.producers, self._paths.foreign, self._paths.cold, self._paths.cold_owner
        paths = [self._paths.transactions, *records, self._paths.progress_journal]
        paths += [
            directories.join(self._paths.staged, name)
            for name in directories.list_names(self._tree.disk, self._paths.staged)
        ]
        for path in paths:
            if not self._tree.disk.exists(path):
                continue
            try:
                yield from _verify_file(self._tree, path, False, self._totals)
                yield from (
                    check_prepared(self._tree.disk, self._paths, path, self._tree.named(path)) if self._deep else ()
                )
            except (Vanished, DiskError):
                continue  # published or dropped meanwhile

    def _new_facts(self) -> EngineFacts:
        facts = EngineFacts(EnginePaths(self._tree.named(self._paths.root)))
        facts.quarantined = directories.list_names(self._tree.disk, self._paths.quarantine)
        return facts

    # --- one file ------------------------------------------------------------------------------------------------------------

    def _look(self, path: str, examine: Callable[[Source], _L]) -> _L | list[Finding]:
        """One look, or the finding that there is nothing to be seen; nothing at all of a file that has vanished."""
        try:
            with self._tree.open(path) as source:
                look = examine(source)
                look.findings += bad_sectors(source)
                return look
        except Vanished:
            return []
        except DiskError as error:
            if is_about_access(error):
                raise
            return [unreadable(self._tree.named(path), error)]

    def _look_twice(self, path: str, examine: Callable[[Source], _L]) -> _L | list[Finding]:
        """A look at a file that may be written right now: damage is what two looks agree on."""
        first = self._look(path, examine)
        if isinstance(first, list) or not has_damage(first.findings):
            return first
        again = self._look(path, examine)
        if isinstance(again, list):
            return again
        again.findings = _in_both(first.findings, again.findings)
        return again

    # --- kinds of files ------------------------------------------------------------------------------------------------------

    def _logs(self, facts: EngineFacts, deep: bool, totals: Totals) -> Iterator[Finding]:
        for name in directories.log_names(self._tree.disk, self._paths):
            path = f"{self._paths.wal}/{name}"
            look = self._look_twice(path, lambda source: self._examine_log(source, deep))
            totals.files += 1
            if isinstance(look, list):
                yield from look
                continue
            totals.entries += look.view.entry_count
            facts.logs[self._tree.named(path)] = look.view
            yield from look.findings

    @staticmethod
    def _examine_log(source: Source, deep: bool) -> LogLook:
        footer = whole_footer(source.read, source.size_bytes)
        if footer is None:
            return examine_log(source, deep=deep, limit=0, is_last=rotation_number(source.name) is None)
        end = footer.directory_offset
        look = examine_log(source, deep=deep, limit=0, is_last=True, end=end, is_sealed=True)
        look.findings = [
            note(
                "log.unrenamed_segment",
                source.path,
                None,
                "a whole segment that only lacks its name in segments/",
                action="nothing: the seal is finishing now, or the next open finishes it",
            )
        ]
        return look

    def _segments(self, facts: EngineFacts, deep: bool, totals: Totals) -> Iterator[Finding]:
        for segment_seq, name in directories.segment_names(self._tree.disk, self._paths).items():
            path = f"{self._paths.segments}/{name}"
            look = self._look(path, _segment_examiner(segment_seq, deep))
            if isinstance(look, list) and not look:
                continue  # every subscriber had it, and it was deleted
            totals.files += 1
            totals.segments += 1
            facts.segment_files[segment_seq] = self._tree.named(path)
            if isinstance(look, list):
                yield from look
                continue
            if look.has_tables:
                totals.bundles += look.view.bundle_count
                facts.segments[segment_seq] = look.view
            yield from look.findings
            yield from _lost_bundles(look, self._tree.named(path))
        for segment_seq, view in cold_views(self._tree.disk, self._paths).items():
            # Where both exist the hot file counts.
            if facts.segment_files.setdefault(segment_seq, self._tree.named(self._paths.cold)) == self._tree.named(
                self._paths.cold
            ):
                facts.segments[segment_seq] = view
                totals.segments += 1
                totals.bundles += view.bundle_count

    def _small_files(self, facts: EngineFacts, totals: Totals) -> Iterator[Finding]:
        """Progress, gap notices, cursor, core file. The core file last: what it reserves only grows."""
        for name in directories.progress_names(self._tree.disk, self._paths).values():
            path = directories.join(self._paths.root, name)
            look = self._look_twice(path, lambda source: examine_progress(source, limit=0))
            totals.files += 1
            totals.subscribers += 1
            if isinstance(look, list):
                yield from look
                continue
            if look.progress is not None:
                facts.progress[self._tree.named(path)] = look.progress
            yield from look.findings
        yield from self._gap_files(totals)
        cursor, core = f"{self._paths.wal}/{CURSOR_NAME}", directories.join(self._paths.root, CORE_NAME)
        facts.cursor = yield from self._fixed(cursor, examine_cursor, totals)
        facts.core = yield from self._fixed(core, examine_core, totals)

    def _gap_files(self, totals: Totals) -> Iterator[Finding]:
        for name in directories.gap_file_names(self._tree.disk, self._paths):
            look = self._look_twice(
                directories.join(self._paths.root, name), lambda source: examine_gaps(source, limit=0)
            )
            totals.files += 1
            yield from look if isinstance(look, list) else look.findings

    def _fixed(
        self, path: str, examine: Callable[[Source], FixedLook[_T]], totals: Totals
    ) -> Generator[Finding, None, _T | None]:
        """Findings about a file that is one structure; returns what it says."""
        if not self._tree.disk.exists(path):
            return None
        look = self._look_twice(path, examine)
        totals.files += 1
        if isinstance(look, list):
            yield from look
            return None
        yield from look.findings
        return look.value

    # --- all files ------------------------------------------------------------------------------------------------------------

    def _agreed(self, findings: list[Finding]) -> list[Finding]:
        """The findings that further looks at the whole directory come to as well, word for word."""
        for _ in range(_LOOKS_MAX - 1):
            if not findings:
                break
            facts = self._new_facts()
            unseen = Totals()
            for _finding in (
                *self._logs(facts, False, unseen),
                *self._segments(facts, False, unseen),
                *self._small_files(facts, unseen),
            ):
                pass
            again = cross_check(facts)
            findings = [finding for finding in findings if finding in again]
        return findings

    def _left_over(self) -> Iterator[Finding]:
        found = directories.leftovers(self._tree.disk, self._paths)
        for path in found.temporary:
            message = "a temporary file: of a running engine, or left by a crash"
            yield self._note("file.temporary", path, message, "nothing: the next open puts it away")
        for path in found.unknown:
            yield self._note("file.unknown", path, "not a file of an engine; it is left alone", "")
        if found.quarantined:
            size = sum(self._tree.disk.allocated_bytes(path) for path in found.quarantined)
            message = f"{len(found.quarantined)} damaged files or spans were moved here, {size} bytes on disk"
            action = "`quiver inspect` and `quiver export-segment` read them; delete them when they are not needed"
            yield self._note("quarantine", self._paths.quarantine, message, action)

    def _note(self, code: str, path: str, message: str, action: str) -> Finding:
        return note(code, self._tree.named(path), None, message, action=action)


def _segment_examiner(segment_seq: int, deep: bool) -> Callable[[Source], SegmentLook]:
    return lambda source: examine_segment(source, segment_seq, deep=deep, limit=0)


def _lost_bundles(look: SegmentLook, path: str) -> Iterator[Finding]:
    if look.view.lost_bundles:
        yield warning(
            "segment.lost_bundles",
            path,
            None,
            f"{look.view.lost_bundles} of its {look.view.bundle_count} bundles were lost to damage before it was sealed",
            action="nothing: subscribers are told by gap notices",
        )


def _in_both(earlier: list[Finding], later: list[Finding]) -> list[Finding]:
    """The later findings, without damage that the earlier look did not see at the same place."""
    seen = {(finding.code, finding.offset) for finding in earlier}
    return [
        finding
        for finding in later
        if finding.severity is not Severity.DAMAGE or (finding.code, finding.offset) in seen
    ]
