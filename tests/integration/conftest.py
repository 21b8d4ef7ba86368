"""Directories for a node; one node and one Spark session for all tests of `format("quiver")`: a JVM keeps the environment that it was
started with."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest

from tests.integration.node_process import Directories
from tests.integration.spark_node import Node, spark_session
from tests.support.object_store import ObjectStore, in_environment

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TOPICS = (
    *("types", "arrow", "drift", "projection", "threads", "zones", "restart", "partitions", "sql", "empty", "located"),
    *("limits", "coming", "bytes", "replay", "latest", "lost", "expiry"),
    *(
        "aborted",
        "cancelled",
        "decided",
        "undecided",
        "reused",
        "each",
        "commit",
        "again",
        "failing",
        "bounds",
        "sink",
        "keyed",
        "tasks",
        "filters",
        "switched",
        "tables",
        "pushed",
        "teed",
        "foreach",
        "halves",
        "traced",
        "forked",
    ),
)
SPARK_CONFIG = (
    "[segment]\ntarget_size = '64KiB'\nmax_open_duration = '1h'\n"
    "[topics.travel.slots]\nflights = 0\nweather = 1\n[topics.slots.slots]\na = 3\nb = 5\n[topics.statistics.slots]\na = 0\nb = 1\n"
    + "".join(f"[topics.{topic}]\n" for topic in TOPICS)
)


@pytest.fixture
def directories() -> Iterator[Directories]:
    made = Directories()
    yield made
    made.remove()


@pytest.fixture(scope="session")
def bucket() -> Iterator[ObjectStore]:
    """An object store that node and session have been started with."""
    store = ObjectStore()
    yield store
    store.close()


@pytest.fixture(scope="session")
def node(bucket: ObjectStore) -> Iterator[Node]:
    with in_environment(bucket):
        node = Node(SPARK_CONFIG)
    yield node
    node.remove()


@pytest.fixture(scope="session")
def spark(node: Node, bucket: ObjectStore, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    os.environ["QUIVER_RUN_DIR"] = str(node.run_dir)
    conf = {"spark.sql.session.timeZone": "America/New_York"}
    with ExitStack() as stack:
        with in_environment(bucket):
            session = stack.enter_context(spark_session(tmp_path_factory.mktemp("spark"), **conf))
        yield session
    del os.environ["QUIVER_RUN_DIR"]
