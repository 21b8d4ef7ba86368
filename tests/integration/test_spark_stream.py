"""Structured streaming out of a topic, against a real node and a real local Spark session."""

from __future__ import annotations

import json
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from quiver_actors.spark.stream_readers import HAS_ADMISSION_CONTROL
from tests.integration.spark_node import Node, ResumedQuery, wait_until

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import StreamingQuery

pytestmark = [
    pytest.mark.spark,
    pytest.mark.timeout(400),
    pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning"),
]


needs_limits = pytest.mark.skipif(
    not HAS_ADMISSION_CONTROL, reason="needs Spark 4.2: limits, Trigger.AvailableNow, lag"
)


def push(node: Node, topic: str, first: int, count: int, bundle_rows: int = 10) -> None:
    """Rows `first` to `first + count`, on both workers."""
    with node.client() as client:
        for start in range(first, first + count, bundle_rows):
            rows = pa.record_batch({"n": pa.array(range(start, min(start + bundle_rows, first + count)), pa.int64())})
            client.push(rows, topic=topic, key=str(start))


def damage(segment: Path) -> None:
    """Overwrite the first half of a sealed file."""
    segment.chmod(0o600)
    size_bytes = segment.stat().st_size
    with segment.open("r+b") as file:
        file.seek(256)
        file.write(b"\xff" * (size_bytes // 2 - 256))


class Stream:
    """A streaming query that collects what it reads into Parquet files, with one checkpoint over several runs.

    Where newer ones have Trigger.AvailableNow, Spark 4.1 makes one micro-batch a run, of what is there, and that may be a replayed one.
    It has its subscriber named.
    """

    def __init__(self, spark: SparkSession, directory: Path, topic: str, **options: str) -> None:
        self._spark = spark
        self.checkpoint = directory / "checkpoint"
        self._output = directory / "output"
        named = {} if HAS_ADMISSION_CONTROL else {"subscriber": f"reads-{topic}"}
        self._options = {"topic": topic, "startingOffsets": "earliest", **named, **options}

    def frame(self) -> DataFrame:
        return self._spark.readStream.format("quiver").options(**self._options).schema("n BIGINT").load()

    def start(self, **trigger: Any) -> StreamingQuery:
        writer = self.frame().writeStream.format("parquet").option("path", str(self._output))
        writer = writer.option("checkpointLocation", str(self.checkpoint))
        return (writer.trigger(**trigger) if trigger else writer).start()

    def run_available(self) -> list[dict[str, Any]]:
        """Read what is there, and return the progress of each micro-batch that had rows."""
        for _ in range(1 if HAS_ADMISSION_CONTROL else 2):
            query = ResumedQuery(lambda: self.start(availableNow=True)).finish()
        return [json.loads(p.json) for p in query.recentProgress if p.numInputRows]

    def rows(self) -> list[int]:
        if not self._output.exists():
            return []
        return sorted(row[0] for row in self._spark.read.schema("n BIGINT").parquet(str(self._output)).collect())

    def offsets(self) -> list[dict[str, Any]]:
        """What Spark has stored, in order."""
        files = sorted((self.checkpoint / "offsets").glob("[0-9]*"), key=lambda path: int(path.name))
        return [json.loads(path.read_text().splitlines()[2]) for path in files]


@needs_limits
def test_limits_cut_micro_batches_and_available_now_ends(spark: SparkSession, node: Node, tmp_path: Path) -> None:
    push(node, "limits", 0, 300)
    stream = Stream(spark, tmp_path, "limits", maxRowsPerTrigger="100")
    batches = stream.run_available()
    assert stream.rows() == list(range(300))
    assert [batch["numInputRows"] for batch in batches] == [100, 100, 100]
    # What progress reports as the latest is what there is, not what the limit lets through.
    first, *_, last = (batch["sources"][0] for batch in batches)
    assert first["latestOffset"]["cores"] == last["endOffset"]["cores"] != first["endOffset"]["cores"]
    push(node, "limits", 300, 50)
    stream.run_available()
    assert stream.rows() == list(range(350))
    for offset in stream.offsets():
        assert list(offset) == sorted(offset)
        assert list(offset["cores"]) == sorted(offset["cores"])
        assert all(isinstance(position, int) for position in offset["cores"].values())


@needs_limits
def test_available_now_ends_while_rows_keep_coming(spark: SparkSession, node: Node, tmp_path: Path) -> None:
    push(node, "coming", 0, 200)
    stream = Stream(spark, tmp_path, "coming", maxRowsPerTrigger="100")
    is_over = threading.Event()

    def go_on() -> int:
        count = 200
        while not is_over.wait(0.3):
            push(node, "coming", count, 10)
            count += 10
        return count

    with ThreadPoolExecutor(1) as threads:
        going = threads.submit(go_on)
        try:
            stream.run_available()
        finally:
            is_over.set()
        count = going.result()
    found = stream.rows()
    assert len(found) == len(set(found))
    assert set(range(200)) <= set(found) < set(range(count))
    stream.run_available()
    assert stream.rows() == list(range(count))


@needs_limits
def test_a_limit_in_bytes(spark: SparkSession, node: Node, tmp_path: Path) -> None:
    push(node, "bytes", 0, 200)
    stream = Stream(spark, tmp_path, "bytes", maxBytesPerTrigger="4KiB")
    assert len(stream.run_available()) > 2
    assert stream.rows() == list(range(200))


def test_a_replayed_micro_batch_has_the_same_rows(spark: SparkSession, node: Node, tmp_path: Path) -> None:
    push(node, "replay", 0, 120)
    limit = {"maxRowsPerTrigger": "40"} if HAS_ADMISSION_CONTROL else {}
    stream = Stream(spark, tmp_path, "replay", **limit)
    stream.run_available()
    last = max((stream.checkpoint / "commits").glob("[0-9]*"), key=lambda path: int(path.name))
    last.unlink()
    (last.parent / f".{last.name}.crc").unlink(missing_ok=True)
    push(node, "replay", 120, 40)
    stream.run_available()
    assert stream.rows() == list(range(160))


def test_latest_begins_behind_what_is_there_and_idle_makes_no_batches(
    spark: SparkSession, node: Node, tmp_path: Path
) -> None:
    push(node, "latest", 0, 30)
    stream = Stream(spark, tmp_path, "latest", startingOffsets="latest")
    query = stream.start(processingTime="0 seconds")
    try:
        wait_until(lambda: stream.offsets() or query.exception(), "the first offset")
        push(node, "latest", 30, 30)
        wait_until(lambda: stream.rows() == list(range(30, 60)) or query.exception(), "the rows")
        batches = len(stream.offsets())
        query.processAllAvailable()
        assert len(stream.offsets()) == batches
        # The progress of a batch is told after its rows are there.
        assert any(progress.numInputRows for progress in query.recentProgress)
    finally:
        query.stop()
    assert stream.rows() == list(range(30, 60))


def test_the_commit_frees_segments_and_an_expired_subscriber_does(
    spark: SparkSession, node: Node, tmp_path: Path
) -> None:
    push(node, "expiry", 0, 50)
    stream = Stream(spark, tmp_path, "expiry", subscriber="expiring", subscriberTtl="1s")
    stream.run_available()
    with node.client() as client:
        # The last micro-batch is committed by the next run only: until then its segments stay, or until the subscriber expires.
        wait_until(lambda: not any(client.subscribers("expiry").values()), "the subscriber's end")
    push(node, "expiry", 50, 50)
    stream.run_available()
    assert stream.rows() == list(range(100))
    with node.client() as client:
        wait_until(
            lambda: sum(info.pending for infos in client.subscribers("expiry").values() for info in infos) <= 50,
            "the acknowledgement",
        )


def test_lost_bundles_end_the_query_or_are_passed_over(spark: SparkSession, node: Node, tmp_path: Path) -> None:
    push(node, "lost", 0, 40)
    Stream(spark, tmp_path, "lost", subscriber="reader").run_available()
    push(node, "lost", 40, 40)
    with node.client() as client:
        client.flush("lost")
        segments = {core: infos[-1].segment_seq for core, infos in client.segments("lost").items() if infos}
    node.stop()
    core, segment_seq = max(segments.items(), key=lambda item: item[1])
    damage(node.directories.data / "lost" / f"core_{core}" / "segments" / f"{segment_seq:016}.qseg")
    node.start()
    with pytest.raises(Exception, match="damaged") as failed:
        Stream(spark, tmp_path, "lost", subscriber="reader").run_available()
    assert "failOnDataLoss=false" in str(failed.value)
    stream = Stream(spark, tmp_path, "lost", subscriber="reader", failOnDataLoss="false")
    stream.run_available()
    assert set(range(40)) < set(stream.rows()) < set(range(80))
