"""The schemas of the files of one slot: one that holds the rows of all bundles so far, or several where no common one does."""

from __future__ import annotations

import pyarrow as pa

from quiver_actors.base.widening import SchemaConflict, widen

_KNOWN_MAX = 10_000
"""Exact schemas that are remembered. One that is forgotten is only looked up again."""


class RepresentativeSchemas:
    """Numbered schemas that only widen, by the rules of `base.widening`.

    A schema belongs to the first one with which it has a common one, and begins a new one if there is none. Columns that a bundle lacks are
    null in its rows. A schema with two columns of one name shares files with no other. Owner: the deliverer that writes the slot.
    """

    def __init__(self) -> None:
        self._widened: list[pa.Schema] = []
        self._known: dict[pa.Schema, int] = {}
        """The number of each exact schema, which holds its rows for good: schemas only widen."""

    def __getitem__(self, number: int) -> pa.Schema:
        return self._widened[number]

    def add(self, schema: pa.Schema) -> int:
        """Return the number of the schema that holds the rows of `schema` from now on."""
        number = self._known.get(schema)
        if number is None:
            if len(self._known) >= _KNOWN_MAX:
                self._known.clear()
            number = self._known[schema] = self._place(schema)
        return number

    def _place(self, schema: pa.Schema) -> int:
        for number, widened in enumerate(self._widened):
            try:
                self._widened[number] = widen([widened, schema])
            except SchemaConflict:
                continue
            return number
        self._widened.append(widen([schema]))
        return len(self._widened) - 1
