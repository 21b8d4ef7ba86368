"""Counts the changes of what one file holds, and tells which of them are durable."""

from __future__ import annotations

from collections.abc import Callable


def tell_nobody() -> None:
    """Do nothing: nobody follows the changes."""


class Changes:
    """The changes of a subscriber's progress, or of its gap notices.

    Attributes:
        version: rises with every change that must become durable.
        flushed_version: the highest version known to be durable, in the file itself or in the journal beside it.
        filed_version: the highest version known to be durable in the file itself.
        on_change: called with every change. It must not refer to the owner of this object, which would keep itself alive.
    """

    def __init__(self, version: int = 0, on_change: Callable[[], object] = tell_nobody) -> None:
        self.version = self.flushed_version = self.filed_version = version
        self.on_change = on_change

    def note(self) -> None:
        """Count a change."""
        self.version += 1
        self.on_change()

    @property
    def is_dirty(self) -> bool:
        """Whether something has changed since the last flush."""
        return self.version > self.flushed_version

    @property
    def is_filed(self) -> bool:
        """Whether the file itself says everything."""
        return self.version == self.filed_version

    def mark_flushed(self, version: int) -> None:
        """Note that the file says everything up to that version."""
        self.filed_version = max(self.filed_version, version)
        self.mark_journaled(version)

    def mark_journaled(self, version: int) -> None:
        """Note that the journal beside the file says everything up to that version."""
        self.flushed_version = max(self.flushed_version, version)
