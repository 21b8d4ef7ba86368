"""Lake tables in a local directory, of each kind."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
from deltalake import DeltaTable as LibraryTable
from pyiceberg.catalog import Catalog, load_catalog

from quiver_actors.forward import DeltaTable, IcebergTable
from quiver_actors.forward.delta_table import DeltaLake
from quiver_actors.forward.iceberg_table import IcebergLake
from quiver_actors.forward.lake import LakeTable
from quiver_actors.forward.table_deliverer import TableDeliverer
from quiver_actors.forward.table_rows import OrderedSource

NAME = "lake.numbers"


def catalog(directory: Path) -> Catalog:
    return load_catalog(
        "tests", type="sql", uri=f"sqlite:///{directory}/catalog.db", warehouse=f"file://{directory}/warehouse"
    )


class Lake(NamedTuple):
    """One kind of table: how to deliver to it and to read it."""

    deliverer: Callable[..., TableDeliverer]
    """A test's directory and subscription."""
    seam: Callable[[Path, str], LakeTable]
    read: Callable[[Path], pa.Table]


def _delta(directory: Path, source: OrderedSource, **options: Any) -> TableDeliverer:
    return DeltaTable(directory / "table", source, **options)


def _iceberg(directory: Path, source: OrderedSource, **options: Any) -> TableDeliverer:
    return IcebergTable(catalog(directory), NAME, source, **options)


LAKES = {
    "delta": Lake(
        _delta,
        lambda directory, subscriber: DeltaLake(str(directory / "table"), subscriber, create=True),
        lambda directory: LibraryTable(directory / "table").to_pyarrow_table(),
    ),
    "iceberg": Lake(
        _iceberg,
        lambda directory, subscriber: IcebergLake(catalog(directory), NAME, subscriber, create=True),
        lambda directory: catalog(directory).load_table(NAME).scan().to_arrow(),
    ),
}
