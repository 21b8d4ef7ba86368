"""A disk that deletes nothing and tells what was changed: what repair works through."""

from __future__ import annotations

import enum

import msgspec

from quiver_actors.store.disk.interposed import InterposedDisk
from quiver_actors.store.disk.protocol import Disk
from quiver_actors.store.files.paths import TEMPORARY_SUFFIX, EnginePaths
from quiver_actors.store.files.quarantine import move_to_quarantine
from quiver_actors.store.wal.layout import HEADER_BYTES


class Action(enum.StrEnum):
    """Kind of a change that a repair makes, or would make in a dry run."""

    MOVE_ASIDE = "move aside"
    KEEP_COPY = "keep a copy"
    """Damaged bytes of a file that goes on to be used are copied to quarantine/."""
    RESTORE = "restore"
    SEAL = "seal"
    RENAME = "rename"
    WRITE = "write"
    REAP = "reap"
    """A temporary file is removed, as each open does."""


class Step(msgspec.Struct, kw_only=True, omit_defaults=True):
    """One change of a directory. Paths are relative to the engine's directory."""

    action: Action
    path: str
    target: str | None = None
    reason: str = ""


class CarefulDisk(InterposedDisk):
    """One engine's directory on the disk `inner`.

    To delete a file moves it to quarantine/, unless it is a temporary file, which means nothing.
    """

    def __init__(self, inner: Disk, paths: EnginePaths) -> None:
        super().__init__(inner)
        self._paths = paths
        self.steps: list[Step] = []

    def note(self, action: Action, path: str, target: str | None = None, reason: str = "") -> None:
        """Record a step of the repair; paths are shown relative to the inspected directory."""
        shown = None if target is None else self._inside(target)
        self.steps.append(Step(action=action, path=self._inside(path), target=shown, reason=reason))

    def _inside(self, path: str) -> str:
        return path.removeprefix(f"{self._paths.root}/")

    def rename(self, source: str, target: str) -> None:
        """Rename a file, and record what that means: moved aside, copied, sealed, renamed or written. A log with anything behind its
        header, which an empty one replaces, is moved to quarantine before."""
        if target == self._paths.active and self.inner.exists(target) and self._size_bytes(target) > HEADER_BYTES:
            self.unlink(target)
        super().rename(source, target)
        if source.startswith(f"{self._paths.quarantine}/"):
            self.note(Action.KEEP_COPY, target)
        elif target.startswith(f"{self._paths.quarantine}/"):
            self.note(Action.MOVE_ASIDE, source, target)
        elif target.startswith(f"{self._paths.segments}/") and source.startswith(f"{self._paths.wal}/"):
            self.note(Action.SEAL, source, target)
        elif source.endswith(TEMPORARY_SUFFIX):
            self.note(Action.WRITE, target)
        else:
            self.note(Action.RENAME, source, target)

    def _size_bytes(self, path: str) -> int:
        file = self.inner.open_read(path)
        try:
            return file.size()
        finally:
            file.close()

    def link(self, source: str, target: str) -> None:
        """Link a file, and record the copy that is kept."""
        super().link(source, target)
        self.note(Action.KEEP_COPY, target)

    def unlink(self, path: str) -> None:
        """Delete a temporary file; move any other file to quarantine instead."""
        if path.endswith(TEMPORARY_SUFFIX):
            if self.inner.exists(path):
                super().unlink(path)
                self.note(Action.REAP, path)
        elif self.inner.exists(path):
            move_to_quarantine(self, self._paths, path)
            self.steps[-1].reason = "not needed any more: what it holds is in segments"
