"""A task that runs twice at the same time, on both hosts."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from quiver_actors.spark.testing import StandaloneCluster
from tests.cluster.looking import everywhere

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [
    pytest.mark.spark,
    pytest.mark.cluster,
    pytest.mark.timeout(600),
    pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning"),
]


#: Read by the scheduler when the context starts, so this is a session of its own.
SPECULATION = {
    "spark__speculation": "true",
    "spark__speculation__interval": "100ms",
    "spark__speculation__multiplier": "1.1",
    "spark__speculation__quantile": "0.3",
}


@pytest.fixture
def spark(cluster: StandaloneCluster) -> Iterator[SparkSession]:
    session = cluster.session(**SPECULATION)
    yield session
    session.stop()


def test_a_slow_host_is_overtaken(spark: SparkSession, cluster: StandaloneCluster) -> None:
    slow = str(cluster.hosts[1].run_dir)

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import os
        import threading

        for batch in batches:
            for start in range(0, batch.num_rows, 100):
                threading.Event().wait(2.0 if os.environ["QUIVER_RUN_DIR"] == slow else 0.0)
                yield batch.slice(start, 100)

    frame = spark.range(0, 4000, 1, 4).mapInArrow(run, "id long")
    frame.write.format("quiver").options(topic="speculation", bundleBytes="1KiB").mode("append").save()
    assert everywhere(cluster, "speculation") == list(range(4000))
