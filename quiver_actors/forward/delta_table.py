"""The deliverer that appends to a Delta table, through the `deltalake` package.

The position of the subscriber is the application transaction (`txn`) of each commit: one for each core of the node, named
`quiver/<topic>/<subscriber>/<core>/<incarnation>`. Delta keeps the last version of each in every checkpoint, and refuses the second of two
concurrent commits of one name.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING

import pyarrow as pa

from quiver_actors.base.units import MIB
from quiver_actors.errors import ConfigError
from quiver_actors.forward.bundle_files import Origin, Place
from quiver_actors.forward.errors import CommitConflict, TableMissing
from quiver_actors.forward.lake import LakeState, name_of, packed, unpacked
from quiver_actors.forward.table_deliverer import TableDeliverer
from quiver_actors.forward.table_rows import OrderedSource
from quiver_actors.forward.table_types import storable

if TYPE_CHECKING:
    import deltalake


class DeltaTable(TableDeliverer):
    """Deliverer that appends the rows of one slot to a Delta table. Give it to a `Forwarder`; a context manager. One thread at a time.

    Args:
        uri: of the table: a directory, or a URL of an object store.
        deliveries: the subscription that the forwarder takes them from: the only consumer of its subscriber, oldest first.
        slot: whose rows, by name or id; None: the only slot of each bundle. A bundle without it is done with.
        target_bytes: bundles are committed when so much has been collected, counted as Arrow has it; it is copied once in memory.
        max_age: or when the oldest one has waited so many seconds.
        create: whether the table is made where it is missing.
        storage_options: for `deltalake`, such as keys of the object store.

    Raises:
        ConfigError: the extra `delta` is not installed.
        UsageError: the subscription is not `order="oldest"`, or numbers make no sense.
    """

    def __init__(
        self,
        uri: str | os.PathLike[str],
        deliveries: OrderedSource,
        *,
        slot: str | int | None = None,
        target_bytes: int = 64 * MIB,
        max_age: float = 60.0,
        create: bool = True,
        storage_options: Mapping[str, str] | None = None,
    ) -> None:
        lake = DeltaLake(os.fspath(uri), deliveries.subscriber, create=create, storage_options=storage_options)
        super().__init__(lake, deliveries, slot=slot, target_bytes=target_bytes, max_age=max_age)


class DeltaLake:
    """See `lake.LakeTable`."""

    has_times = False

    def __init__(
        self, uri: str, subscriber: str, *, create: bool, storage_options: Mapping[str, str] | None = None
    ) -> None:
        """Nothing is opened yet. Raises ConfigError."""
        try:
            import deltalake
        except ImportError as error:
            raise ConfigError("DeltaTable needs the package deltalake: pip install 'quiver-actors[delta]'") from error
        self._library = deltalake
        self._uri = uri
        self._subscriber = subscriber
        self._create = create
        self._storage_options = dict(storage_options or {})
        self._table: deltalake.DeltaTable | None = None

    def close(self) -> None:
        """Do nothing: the library holds nothing open."""

    def load(self, origins: set[Origin]) -> LakeState:
        """Open the newest version."""
        try:
            table = self._table = self._library.DeltaTable(self._uri, storage_options=self._storage_options)
        except self._library.exceptions.TableNotFoundError as error:
            if not self._create:
                raise TableMissing(f"there is no Delta table at {self._uri}, and create=False") from error
            self._table = None
            return LakeState(None, {})
        numbers = {origin: table.transaction_version(name_of(self._subscriber, origin)) for origin in origins}
        positions = {origin: unpacked(number) for origin, number in numbers.items() if number is not None}
        return LakeState(self._schema(table), positions)

    def promotes(self, current: pa.DataType, wanted: pa.DataType) -> bool:
        """Return False: `deltalake` widens no column of a table."""
        return False

    def evolve(self, schema: pa.Schema) -> None:
        """Make the table, or add the columns that it lacks."""
        library, table = self._library, self._table
        try:
            if table is None:
                library.DeltaTable.create(self._uri, schema=schema, storage_options=self._storage_options)
            else:
                known = set(self._schema(table).names)
                missing = pa.schema([field for field in schema if field.name not in known])
                table.alter.add_columns(library.Schema.from_arrow(missing).fields)
        except library.exceptions.DeltaError as error:
            raise CommitConflict(f"the columns of {self._uri} could not be changed: {error}") from error

    def append(self, rows: pa.Table, positions: Mapping[Origin, Place]) -> None:
        """Commit the rows with an application transaction for each origin."""
        library = self._library
        assert self._table is not None, "it was loaded before"
        transactions = [
            library.Transaction(name_of(self._subscriber, origin), packed(place)) for origin, place in positions.items()
        ]
        try:
            library.write_deltalake(
                self._table,
                rows,
                mode="append",
                commit_properties=library.CommitProperties(
                    custom_metadata={"quiver.subscriber": self._subscriber}, app_transactions=transactions
                ),
            )
        except library.exceptions.CommitFailedError as error:
            raise CommitConflict(f"{self._uri} was changed by somebody else: {error}") from error

    def _schema(self, table: deltalake.DeltaTable) -> pa.Schema:
        return storable(pa.schema(table.schema().to_arrow()), has_times=self.has_times)
