"""Lake tables in a local directory, of each kind."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa

from quiver_actors.forward import DeltaTable, IcebergTable
from quiver_actors.forward.delta_table import DeltaLake
from quiver_actors.forward.iceberg_table import IcebergLake
from quiver_actors.forward.lake import LakeTable
from quiver_actors.forward.table_deliverer import TableDeliverer
from quiver_actors.forward.table_rows import OrderedSource

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog

NAME = "lake.numbers"


def catalog(directory: Path) -> Catalog:
    # Each process of a test loads one library only: they are large.
    from pyiceberg.catalog.sql import SqlCatalog
    from sqlalchemy import create_engine
    from sqlalchemy.pool import NullPool

    database = f"sqlite:///{directory}/catalog.db"
    found = SqlCatalog("tests", uri=database, warehouse=f"file://{directory}/warehouse")
    found.close()
    # Each use closes its connection: nobody else closes a catalog that was handed over.
    found.engine = create_engine(database, poolclass=NullPool)
    return found


class Lake(NamedTuple):
    """One kind of table: how to deliver to it and to read it."""

    deliverer: Callable[..., TableDeliverer]
    """Makes a deliverer for a directory and a subscription."""
    seam: Callable[[Path, str], LakeTable]
    read: Callable[[Path], pa.Table]


def _delta(directory: Path, source: OrderedSource, **options: Any) -> TableDeliverer:
    return DeltaTable(directory / "table", source, **options)


def _iceberg(directory: Path, source: OrderedSource, **options: Any) -> TableDeliverer:
    return IcebergTable(catalog(directory), NAME, source, **options)


def _read_delta(directory: Path) -> pa.Table:
    from deltalake import DeltaTable as LibraryTable

    return LibraryTable(directory / "table").to_pyarrow_table()


LAKES = {
    "delta": Lake(
        _delta,
        lambda directory, subscriber: DeltaLake(str(directory / "table"), subscriber, create=True),
        _read_delta,
    ),
    "iceberg": Lake(
        _iceberg,
        lambda directory, subscriber: IcebergLake(catalog(directory), NAME, subscriber, create=True),
        lambda directory: catalog(directory).load_table(NAME).scan().to_arrow(),
    ),
}
