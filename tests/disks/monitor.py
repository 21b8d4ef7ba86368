"""A disk that checks the order of what is done to it: durable before it is relied upon, never again after a failure.

In front of any other disk, always on in tests. A broken rule raises AssertionError with the calls that led to it; no caller may
catch that.

Rules
- A file gets a name that recovery reads (anything but `*.tmp`) only when all that was written to it before is synced. The active log
  may have been appended to since its sync: what it then holds is acknowledged later.
  The summaries of segments are made anew where their checksum is wrong, and are not synced.
- No file takes a name that another one still needs: one whose new name is not durable yet. A second name in `held/` is needed by no
  start: it counts what somebody has open now.
- A file is not written after a failed write, and not written, synced or named after a failed sync. Running out of space in a write
  is no failure of the file.
- A file that had blocks reserved is written only within them: a full disk is met before a write.
- A segment is unlinked only when `may_unlink` says that nobody needs it.
- What is acknowledged is synced, in a file whose name is durable.
- Progress that is told to be durable is: all of its file is synced, under a durable name.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from typing import NoReturn

from quiver_actors.errors import DiskError
from quiver_actors.store.disk.interposed import SYNC_KINDS, Call, InterposedDisk, InterposedFile, Result
from quiver_actors.store.disk.protocol import NO_SPACE_ERRNOS, Disk, DiskFile

_HISTORY_CALLS = 400
_ACTIVE_LOG = "/quiver.wal"
_SEGMENT = ".qseg"
_TEMPORARY = ".tmp"
_HELD = "/held/"
_MADE_ANEW = "/quiver.summaries"


class _Tracked:
    """What the monitor knows of one file: `written` counts its writes, `synced` how many of them a sync has covered."""

    def __init__(self, name: str) -> None:
        self.name: str | None = name
        self.durable_name: str | None = None
        self.written = 0
        self.synced = 0
        self.reserved_bytes = 0
        """Its blocks are reserved so far; 0: for none was asked."""
        self.failed_write = ""
        self.failed_sync = ""

    @property
    def is_synced(self) -> bool:
        return self.synced == self.written


class OrderMonitor(InterposedDisk):
    """A disk that checks the order of all calls; a broken rule raises AssertionError.

    Args:
        may_unlink: asked with the path of each segment before it goes.
        sequences_in: the sequences that a write brings to disk; `acknowledged` knows only of those.
    """

    sees_reads = False

    def __init__(
        self,
        inner: Disk,
        may_unlink: Callable[[str], bool] = lambda path: True,
        sequences_in: Callable[[Call], Iterable[int]] = lambda write: (),
    ) -> None:
        super().__init__(inner)
        self.may_unlink = may_unlink
        self.sequences_in = sequences_in
        self._history: deque[Call | str] = deque(maxlen=_HISTORY_CALLS)
        self._by_name: dict[str, _Tracked] = {}
        self._files: dict[InterposedFile, _Tracked] = {}
        self._entries: dict[int, tuple[_Tracked, int]] = {}

    # --- what callers tell ------------------------------------------------------------------------------------------------

    def acknowledged(self, sequence: int) -> None:
        """The bundle of that sequence was acknowledged as synced."""
        if sequence not in self._entries:
            self._broken(f"sequence {sequence} is acknowledged and was never written to a log")
        tracked, write_number = self._entries[sequence]
        if write_number > tracked.synced:
            self._broken(f"sequence {sequence} is acknowledged and not synced in {tracked.name}")
        if tracked.durable_name is None or _is_temporary(tracked.durable_name):
            self._broken(f"sequence {sequence} is acknowledged in a file whose durable name is {tracked.durable_name}")

    def progress_told(self, path: str) -> None:
        """What stands in that progress file, or in the journal, was told to be durable. What was there before this monitor is taken for
        durable."""
        tracked = self._by_name.get(path)
        if tracked is None:
            return
        if not tracked.is_synced:
            self._broken(f"progress in {path} is told to be durable and is not synced")
        if tracked.durable_name != path:
            self._broken(
                f"progress is told to be durable in a file whose durable name is {tracked.durable_name}, not {path}"
            )

    # --- calls ------------------------------------------------------------------------------------------------------------

    def around(self, call: Call, proceed: Callable[[], Result]) -> Result:
        # Only what is shown is made a text; of a write the bytes are gone then.
        self._history.append(str(call) if call.kind == "write" else call)
        tracked = self._files[call.file] if call.file is not None else None
        self._check(call, tracked)
        covered = tracked.written if tracked is not None else 0
        if tracked is not None and call.kind == "write":
            tracked.written += 1
            for sequence in self.sequences_in(call):
                self._entries[sequence] = (tracked, tracked.written)
        try:
            result = proceed()
        except DiskError as error:
            self._history.append(f"  failed: {error}")
            if tracked is not None:
                self._note_failure(tracked, call, error)
            raise
        if tracked is None:
            self._note_names(call)
        elif call.kind in SYNC_KINDS:
            tracked.synced = max(tracked.synced, covered)
        elif call.kind == "allocate":
            tracked.reserved_bytes = max(tracked.reserved_bytes, call.offset)
        return result

    def _opened(self, call: Call, proceed: Callable[[], DiskFile]) -> InterposedFile:
        known = self._by_name.get(call.path)
        if known is not None and known.failed_sync and call.kind == "open_write":
            self._broken(f"{call} although it failed before: {known.failed_sync}")
        file = super()._opened(call, proceed)
        if known is None or call.kind == "create":
            self._track(call.path, is_durable=call.kind != "create")
        self._files[file] = self._by_name[call.path]
        return file

    def _track(self, path: str, *, is_durable: bool) -> None:
        tracked = self._by_name[path] = _Tracked(path)
        if is_durable:
            tracked.durable_name = path

    def _broken(self, rule: str) -> NoReturn:
        raise AssertionError("\n  ".join([f"{rule}; the calls before:", *map(str, self._history)]))

    # --- rules ------------------------------------------------------------------------------------------------------------

    def _check(self, call: Call, tracked: _Tracked | None) -> None:
        if tracked is not None:
            if tracked.failed_sync or (tracked.failed_write and call.kind not in SYNC_KINDS):
                self._broken(f"{call} although it failed before: {tracked.failed_sync or tracked.failed_write}")
            if call.kind == "write" and 0 < tracked.reserved_bytes < call.offset + sum(map(len, call.buffers)):
                self._broken(f"{call} behind the {tracked.reserved_bytes} bytes that are reserved")
        elif call.kind in ("rename", "link"):
            self._check_named(call)
        elif call.kind == "unlink" and call.path.endswith(_SEGMENT) and not self.may_unlink(call.path):
            self._broken(f"{call} although it may be needed")

    def _check_named(self, call: Call) -> None:
        tracked = self._by_name.get(call.path)
        if tracked is not None and not _is_temporary(call.target):
            is_active = call.target.endswith(_ACTIVE_LOG)
            if not (tracked.is_synced or (is_active and tracked.synced) or call.target.endswith(_MADE_ANEW)):
                self._broken(f"{call} although its bytes are not synced")
            if tracked.failed_sync:
                self._broken(f"{call} although it failed before: {tracked.failed_sync}")
        for other in self._by_name.values():
            if other.durable_name == call.target and other.name != call.target:
                self._broken(f"{call} takes the only durable name of what is now {other.name}")

    # --- what has happened --------------------------------------------------------------------------------------------------

    def _note_failure(self, tracked: _Tracked, call: Call, error: DiskError) -> None:
        if call.kind in SYNC_KINDS:
            tracked.failed_sync = str(error)
        elif call.kind == "write" and error.errno not in NO_SPACE_ERRNOS:
            tracked.failed_write = str(error)

    def _note_names(self, call: Call) -> None:
        if call.kind == "sync_directory":
            for tracked in self._by_name.values():
                if tracked.name is not None and (tracked.name.rpartition("/")[0] or ".") == call.path:
                    tracked.durable_name = tracked.name
        elif call.kind == "unlink":
            self._lose_name(call.path)
        elif call.kind == "link":
            if call.path not in self._by_name:
                self._track(call.path, is_durable=True)
            if _HELD not in call.target:
                tracked = self._by_name[call.target] = self._by_name[call.path]
                tracked.name = call.target
        elif call.kind == "rename":
            self._lose_name(call.target)
            if call.path not in self._by_name:
                self._track(call.path, is_durable=True)
            tracked = self._by_name.pop(call.path)
            tracked.name = call.target
            self._by_name[call.target] = tracked

    def _lose_name(self, path: str) -> None:
        gone = self._by_name.pop(path, None)
        if gone is not None and gone.name == path:
            gone.name = None


def _is_temporary(path: str) -> bool:
    return path.endswith(_TEMPORARY)
