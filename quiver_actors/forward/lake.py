"""The seam to a lake table: a table of rows whose commits carry how far a subscriber has come."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple, Protocol

import pyarrow as pa

from quiver_actors.forward.bundle_files import Origin, Place

_INDEX_BITS = 16
"""A segment has up to 65,535 bundles."""


class LakeState(NamedTuple):
    """One version of a table."""

    schema: pa.Schema | None
    """The columns as `table_types` has them; None where there is no table yet."""
    positions: Mapping[Origin, Place]
    """The last bundle of each origin whose rows are in the table: it and everything older is done with."""


class LakeTable(Protocol):
    """One table, and the position of one subscriber in it. Methods raise what the library of the table raises, too."""

    has_times: bool
    """Whether the table can have columns of times of day."""

    def load(self, origins: set[Origin]) -> LakeState:
        """Look at the newest version of the table, with the positions of these origins. Raises TableMissing."""

    def promotes(self, current: pa.DataType, wanted: pa.DataType) -> bool:
        """Whether a column of the table may change from one type to the other."""

    def evolve(self, schema: pa.Schema) -> None:
        """Make the table, or give it the columns and types that it lacks; `load` it again after that. Raises CommitConflict."""

    def append(self, rows: pa.Table, positions: Mapping[Origin, Place]) -> None:
        """Commit rows and positions at once, or neither, if the positions are still those of the version that was looked at.

        Raises:
            CommitConflict: they are not, or the table has changed in another way that forbids it. Nothing was committed.
        """

    def close(self) -> None:
        """Let go of what was opened for it alone. Idempotent."""


def packed(place: Place) -> int:
    """A place as one number, in the same order."""
    return place[0] << _INDEX_BITS | place[1]


def unpacked(number: int) -> Place:
    """The place that `packed` has made a number of."""
    return number >> _INDEX_BITS, number & ((1 << _INDEX_BITS) - 1)


def name_of(subscriber: str, origin: Origin) -> str:
    """The name under which a table keeps the position of a subscriber in one origin. Names of topics and subscribers have no `/`."""
    return f"quiver/{origin.topic}/{subscriber}/{origin.core}/{origin.incarnation}"
