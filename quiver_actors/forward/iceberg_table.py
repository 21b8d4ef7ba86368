"""The deliverer that appends to an Iceberg table, through the `pyiceberg` package.

The position of the subscriber is a property of the table for each core of the node, `quiver/<topic>/<subscriber>/<core>/<incarnation>`,
which is set by the commit that appends. The summary of each snapshot tells the same, for people: snapshots expire, and properties stay.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyarrow import types

from quiver_actors.base.units import MIB
from quiver_actors.base.widening import SchemaConflict
from quiver_actors.errors import ConfigError
from quiver_actors.forward.bundle_files import Origin, Place
from quiver_actors.forward.errors import CommitConflict, TableMissing
from quiver_actors.forward.lake import LakeState, name_of, packed, unpacked
from quiver_actors.forward.table_deliverer import TableDeliverer
from quiver_actors.forward.table_rows import OrderedSource
from quiver_actors.forward.table_types import storable

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyiceberg.table import Table

_NO_RETRIES = {"commit.retry.num-retries": "0"}


class IcebergTable(TableDeliverer):
    """Deliverer that appends the rows of one slot to an Iceberg table. Give it to a `Forwarder`; a context manager. One thread at a time.

    Args:
        catalog: a catalog of `pyiceberg`, which stays the caller's to close, or the name under which its configuration has one.
        table: `namespace.name`.
        deliveries: the subscription that the forwarder takes them from: the only consumer of its subscriber, oldest first.
        slot: whose rows, by name or id; None: the only slot of each bundle. A bundle without it is done with.
        target_bytes: bundles are committed when so much has been collected, counted as Arrow has it; it is copied once in memory.
        max_age: or when the oldest one has waited so many seconds.
        create: whether the table, and its namespace, is made where it is missing.

    Raises:
        ConfigError: the extra `iceberg` is not installed.
        UsageError: the subscription is not `order="oldest"`, or numbers make no sense.
    """

    def __init__(
        self,
        catalog: Catalog | str,
        table: str,
        deliveries: OrderedSource,
        *,
        slot: str | int | None = None,
        target_bytes: int = 64 * MIB,
        max_age: float = 60.0,
        create: bool = True,
    ) -> None:
        lake = IcebergLake(catalog, table, deliveries.subscriber, create=create)
        super().__init__(lake, deliveries, slot=slot, target_bytes=target_bytes, max_age=max_age)


class IcebergLake:
    """See `lake.LakeTable`."""

    has_times = True

    def __init__(self, catalog: Catalog | str, table: str, subscriber: str, *, create: bool) -> None:
        """Nothing is loaded yet. Raises ConfigError."""
        try:
            from pyiceberg.catalog import load_catalog
        except ImportError as error:
            raise ConfigError(
                "IcebergTable needs the package pyiceberg: pip install 'quiver-actors[iceberg]'"
            ) from error
        self._is_own = isinstance(catalog, str)
        self._catalog = load_catalog(catalog) if isinstance(catalog, str) else catalog
        self._name = table
        self._subscriber = subscriber
        self._create = create
        self._table: Table | None = None

    def close(self) -> None:
        """Close a catalog that was named: an SQL catalog keeps connections to its database."""
        if self._is_own:
            self._catalog.close()

    def load(self, origins: set[Origin]) -> LakeState:
        """Load the newest metadata."""
        from pyiceberg.exceptions import NoSuchNamespaceError, NoSuchTableError

        try:
            table = self._table = self._catalog.load_table(self._name)
        except (NoSuchTableError, NoSuchNamespaceError) as error:
            if not self._create:
                raise TableMissing(f"there is no Iceberg table {self._name}, and create=False") from error
            self._table = None
            return LakeState(None, {})
        found = {origin: table.properties.get(name_of(self._subscriber, origin)) for origin in origins}
        positions = {origin: unpacked(int(number)) for origin, number in found.items() if number is not None}
        return LakeState(self._schema(table), positions)

    def promotes(self, current: pa.DataType, wanted: pa.DataType) -> bool:
        """Return True for what the specification of Iceberg lets a column become, as far as the two types are storable."""
        if types.is_decimal(current) and types.is_decimal(wanted):
            return bool(current.scale == wanted.scale and current.precision <= wanted.precision)
        if types.is_nested(current):
            return True  # The library looks at the fields, and refuses.
        return (current, wanted) in ((pa.int32(), pa.int64()), (pa.float32(), pa.float64()))

    def evolve(self, schema: pa.Schema) -> None:
        """Make the table and its namespace, or add and widen columns."""
        from pyiceberg.exceptions import CommitFailedException, TableAlreadyExistsError, ValidationError

        try:
            if self._table is None:
                self._catalog.create_namespace_if_not_exists(self._name.rpartition(".")[0])
                self._catalog.create_table(self._name, schema)
            else:
                with self._table.update_schema() as update:
                    update.union_by_name(schema)
        except (CommitFailedException, TableAlreadyExistsError) as error:
            raise CommitConflict(f"the columns of {self._name} were changed by somebody else: {error}") from error
        except ValidationError as error:
            raise SchemaConflict(f"table {self._name} does not take columns of these types: {error}") from error

    def append(self, rows: pa.Table, positions: Mapping[Origin, Place]) -> None:
        """Commit the rows with the positions, in the version that was loaded or not at all."""
        from pyiceberg.exceptions import CommitFailedException

        assert self._table is not None, "it was loaded before"
        texts = {name_of(self._subscriber, origin): str(packed(place)) for origin, place in positions.items()}
        summary = {"quiver.subscriber": self._subscriber, **texts}
        try:
            with _without_retries(self._table).transaction() as transaction:
                transaction.append(rows, snapshot_properties=summary)
                transaction.set_properties(texts)
        except CommitFailedException as error:
            raise CommitConflict(f"{self._name} was changed by somebody else: {error}") from error

    def _schema(self, table: Table) -> pa.Schema:
        return storable(table.schema().as_arrow(), has_times=self.has_times)


def _without_retries(table: Table) -> Table:
    """The same version of the table, whose commits are not tried again in a later version: there, another position may hold."""
    from pyiceberg.table import Table

    metadata: Any = table.metadata
    here = metadata.model_copy(update={"properties": {**metadata.properties, **_NO_RETRIES}})
    return Table(table.name(), here, table.metadata_location, table.io, table.catalog)
