"""The seam between `ParquetFiles` and the place where the files of one slot lie: a local directory, or a prefix of an object store."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Protocol

from quiver_actors.forward.bundle_files import Origin
from quiver_actors.forward.parts import Part

TEMPORARY_PREFIX = ".writing-"
"""Readers of a data set leave out names that begin with a dot."""


class SlotFiles(Protocol):
    """The files of one slot. Other processes may write there too; no bundle is ever in two of them.

    That holds as long as finished files stay where they are until their bundles are acknowledged, some seconds.
    """

    counts: Counter[str]
    """What was written since it was opened, by the names of the fields of `ParquetStatistics`."""

    def write(self, origin: Origin, parts: Sequence[Part], compression: str) -> None:
        """Make those parts, which have one schema, durable that no file there has yet.

        Raises:
            OSError, ArchiveError, InvalidFormat: some may be durable by now, all may be tried again.
            ChecksumMismatch: a part is damaged where it is stored; nothing was written.
            pa.ArrowException: a part cannot be written.
        """

    def close(self) -> None:
        """Give resources back. Idempotent."""
