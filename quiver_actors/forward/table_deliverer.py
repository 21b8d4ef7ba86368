"""The deliverer that commits bundles to a lake table, together with how far its subscriber has come.

Guarantees:
- Rows and position are one commit. Whatever is killed when, a bundle up to the position is in the table and is not written again, and a
  bundle behind it is not in the table: no row is lost or doubled.
- The position passes no bundle that is still owed to the subscriber. The workers are asked before each commit; what is newer than a bundle
  that is owed and not here gets `OutOfOrder` and comes again. So one consumer, oldest first, never waits, and anything else is safe.
- Of two processes that commit for one subscriber at the same time one gets a conflict. It looks again at what is in the table, and tries
  again without what the other has committed.
"""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

from quiver_actors.client.delivery import Delivery
from quiver_actors.errors import UnsupportedType, UsageError
from quiver_actors.forward.bundle_files import origin_of
from quiver_actors.forward.collecting import CollectingDeliverer
from quiver_actors.forward.deliverer import Outcome
from quiver_actors.forward.errors import CommitConflict, PermanentFailure
from quiver_actors.forward.lake import LakeTable
from quiver_actors.forward.table_rows import Errors, OrderedSource, Row, committable, common_schema, copied
from quiver_actors.forward.table_types import storable

_ATTEMPTS_MAX = 10


@dataclass(frozen=True, slots=True)
class TableStatistics:
    """Counted since the deliverer was made."""

    commits: int = 0
    rows: int = 0
    skipped: int = 0
    """Bundles that were in the table already: acknowledgements that a crash had lost."""
    conflicts: int = 0
    """Commits that were tried again because somebody else had changed the table."""


class TableDeliverer(CollectingDeliverer[Row]):
    """Deliverer of one slot to one lake table. Give it to a `Forwarder`; a context manager. One thread at a time.

    Raises:
        UsageError: the subscription is not `order="oldest"`, or numbers make no sense.
    """

    def __init__(
        self, table: LakeTable, deliveries: OrderedSource, *, slot: str | int | None, target_bytes: int, max_age: float
    ) -> None:
        super().__init__(target_bytes, max_age)
        if deliveries.order != "oldest":
            raise UsageError(
                f"subscriber {deliveries.subscriber!r} gets order={deliveries.order!r}: a table takes one consumer, oldest first"
            )
        self._table = table
        self._deliveries = deliveries
        self._slot = slot
        self._commits = self._rows = self._skipped = self._conflicts = 0

    def statistics(self) -> TableStatistics:
        """Return what was committed so far."""
        return TableStatistics(self._commits, self._rows, self._skipped, self._conflicts)

    def close(self) -> None:
        """Forget what was not committed, without an outcome for its bundles, and let go of the table. Idempotent."""
        super().close()
        self._table.close()

    # --- Deliverer -------------------------------------------------------------------------------------------------------

    def offer(self, delivery: Delivery) -> None:
        """Collect one bundle; it is committed with others.

        Raises:
            PermanentFailure: it has a type that the table has not.
            FormatError, InvalidBundle: it cannot be read, or has several slots and none was chosen.
        """
        batch = None
        if self._slot is None:
            batch = delivery.batch
        elif self._slot in delivery:
            batch = delivery[self._slot]
        if batch is not None:
            try:
                storable(batch.schema, has_times=self._table.has_times)
            except UnsupportedType as error:
                raise PermanentFailure(str(error)) from error
        place = (delivery.bundle_id.segment_seq, delivery.bundle_id.bundle_index)
        size_bytes = 0 if batch is None else batch.nbytes
        self._take(delivery, Row(delivery, origin_of(delivery), place, batch), size_bytes)

    # --- committing ------------------------------------------------------------------------------------------------------

    def _finish(self) -> list[Outcome]:
        errors: Errors = {}
        failure: Exception | None = CommitConflict(f"the table was never the same twice in {_ATTEMPTS_MAX} attempts")
        for _ in range(_ATTEMPTS_MAX):
            try:
                if self._commit(errors):
                    failure = None
                    break
            except CommitConflict as conflict:
                self._conflicts += 1
                failure = conflict
            except Exception as error:  # noqa: BLE001 - whatever a library raises is what became of the bundles
                failure = error
                break
        return [Outcome(row.delivery, errors.get(key, failure)) for key, row in self._taken.items()]

    def _commit(self, errors: Errors) -> bool:
        """Commit what has no error. False: some of it has got an error, or the table other columns, so that it must be looked at anew."""
        state = self._table.load({row.origin for row in self._taken.values()})
        rows = committable(self._taken.values(), state.positions, self._deliveries, errors)
        known = len(errors)
        schema = common_schema(rows, state.schema, self._table, errors)
        if len(errors) > known:
            return False
        if schema is not None and not schema.equals(state.schema or pa.schema([])):
            # Others may have committed since the positions were read: they are read again.
            self._table.evolve(schema)
            return False
        table = copied(rows, schema or pa.schema([]), errors)
        if len(errors) > known:
            return False
        if table.num_rows:
            self._table.append(table, {row.origin: row.place for row in rows})
            self._commits += 1
            self._rows += table.num_rows
        self._skipped += len(self._taken) - len(rows) - len(errors)
        return True
