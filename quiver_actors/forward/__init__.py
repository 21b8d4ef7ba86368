"""Forwards bundles to a target: a loop that takes them, retries, rejects, drains and counts, and two deliverers.

with client.subscribe("exporter") as subscription:
    Forwarder(subscription, send).run()
"""

from quiver_actors.forward.backoff import Backoff
from quiver_actors.forward.calls import Calls
from quiver_actors.forward.deliverer import Deliverer, Outcome
from quiver_actors.forward.errors import PermanentFailure, TransientFailure
from quiver_actors.forward.forwarder import Forwarder, ForwarderStatistics
from quiver_actors.forward.parquet_files import ParquetFiles, ParquetStatistics

__all__ = [
    "Backoff",
    "Calls",
    "Deliverer",
    "Forwarder",
    "ForwarderStatistics",
    "Outcome",
    "ParquetFiles",
    "ParquetStatistics",
    "PermanentFailure",
    "TransientFailure",
]
