"""Errors of shared memory, one leaf per decision that a caller can take."""

from __future__ import annotations


class ShmError(Exception):
    """Root: shared memory cannot be made, is not what it should be, or was used against its rules."""


class NoRoom(ShmError):
    """The machine or its memory group cannot hold that much more: ask for less, or free memory."""


class NotPermitted(ShmError):
    """The shared memory belongs to another user."""


class WriterStuck(ShmError):
    """The writer of a multi-word record died or was stopped in the middle of a change."""


class LockHeld(ShmError):
    """Another open file holds the life lock: its process is alive.

    `holder_pid` is what the holder wrote into the file, None when it has not written it yet.
    """

    def __init__(self, path: str, holder_pid: int | None) -> None:
        holder = f"process {holder_pid}" if holder_pid is not None else "another process"
        super().__init__(f"{path} is locked by {holder}")
        self.path = path
        self.holder_pid = holder_pid
