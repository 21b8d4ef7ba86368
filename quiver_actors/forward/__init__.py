"""Forwards bundles to a target: a loop that takes them, retries, rejects, drains and counts, and deliverers.

with client.subscribe("exporter") as subscription:
    Forwarder(subscription, send).run()
"""

from quiver_actors.forward.backoff import Backoff
from quiver_actors.forward.calls import Calls
from quiver_actors.forward.deliverer import Deliverer, Outcome
from quiver_actors.forward.delta_table import DeltaTable
from quiver_actors.forward.errors import CommitConflict, OutOfOrder, PermanentFailure, TableMissing, TransientFailure
from quiver_actors.forward.forwarder import Forwarder, ForwarderStatistics
from quiver_actors.forward.iceberg_table import IcebergTable
from quiver_actors.forward.parquet_files import ParquetFiles, ParquetStatistics
from quiver_actors.forward.table_deliverer import TableStatistics

__all__ = [
    "Backoff",
    "Calls",
    "CommitConflict",
    "Deliverer",
    "DeltaTable",
    "Forwarder",
    "ForwarderStatistics",
    "IcebergTable",
    "OutOfOrder",
    "Outcome",
    "ParquetFiles",
    "ParquetStatistics",
    "PermanentFailure",
    "TableMissing",
    "TableStatistics",
    "TransientFailure",
]
