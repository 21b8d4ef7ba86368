"""Quiver as a Spark data source, and what a driver program needs around it.

    from quiver_actors import spark as qs

    qs.ensure_java()                                  # before the session: finds or provides a Java runtime
    spark = SparkSession.builder.config(map=qs.session_conf()).getOrCreate()
    qs.use(spark)                                     # once in every thread that writes
    df.write.format("quiver").option("topic", "clicks").mode("append").save()
    spark.read.format("quiver").option("topic", "clicks").load()

Importing this package loads neither pyspark nor pyarrow: Spark imports it in every application (see `pyspark_quiver`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from quiver_actors.spark.java import ensure_java
from quiver_actors.spark.session import session_conf, use

if TYPE_CHECKING:
    from quiver_actors.base.conform import conform
    from quiver_actors.spark import testing
    from quiver_actors.spark.connection import node_client
    from quiver_actors.spark.locality import read_local
    from quiver_actors.spark.pushing import foreach_batch, push, tee

__all__ = [
    "conform",
    "ensure_java",
    "foreach_batch",
    "node_client",
    "push",
    "read_local",
    "session_conf",
    "tee",
    "testing",
    "use",
]

_LAZY = {
    "conform": "quiver_actors.base.conform",
    "foreach_batch": "quiver_actors.spark.pushing",
    "node_client": "quiver_actors.spark.connection",
    "push": "quiver_actors.spark.pushing",
    "read_local": "quiver_actors.spark.locality",
    "tee": "quiver_actors.spark.pushing",
}


def __getattr__(name: str) -> Any:
    import importlib

    if name == "testing":
        return importlib.import_module("quiver_actors.spark.testing")
    if name in _LAZY:
        return getattr(importlib.import_module(_LAZY[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
