"""Spark reads the archives of nodes, and asks no node."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from pyspark.sql.types import LongType, StructField, StructType

from quiver_actors.errors import ConfigError, DataLost, UnknownTopic, UsageError
from quiver_actors.spark import offsets
from quiver_actors.spark.options import READ, READ_STREAM, parse_options
from quiver_actors.spark.reader import TopicReader, stored_schema
from tests.support.archived import ArchiveWriter, hole, sealed_segments

pytestmark = pytest.mark.spark

SCHEMA = StructType([StructField("n", LongType())])


def numbers(*bundles: int) -> list[pa.RecordBatch]:
    """A bundle of three rows for each number."""
    return [pa.record_batch({"n": pa.array(range(3 * number, 3 * number + 3), pa.int64())}) for number in bundles]


def archived(directory: Path, holes: bool = False) -> str:
    """The URL of an archive of two nodes: bundles 0 to 5 of one, 6 to 8 of the other; with holes the second segment is lost."""
    url = f"file://{directory}/archive"
    one, two = sealed_segments(directory / "a", [numbers(0, 1, 2), numbers(3, 4, 5)])
    if holes:
        ArchiveWriter(url).archive({0: one}, [hole(1, 0, 3, "evicted")])
    else:
        ArchiveWriter(url).archive({0: one, 1: two})
    ArchiveWriter(url, node="node-b").archive(dict(enumerate(sealed_segments(directory / "b", [numbers(6, 7, 8)]))))
    return url


def read(url: str, **options: str) -> list[int]:
    reader = TopicReader(parse_options({"topic": "default", "archive": url, **options}, READ), SCHEMA)
    return [row for each in reader.partitions() for batch in reader.read(each) for row in batch.column(0).to_pylist()]


def test_a_session_reads_all_archives_without_a_node(spark: SparkSession, tmp_path: Path) -> None:
    url = archived(tmp_path)
    frame = spark.read.format("quiver").option("topic", "default").option("archive", url).load()
    assert frame.schema == SCHEMA
    assert sorted(row.n for row in frame.collect()) == list(range(27))
    assert frame.where("n >= 20").count() == 7


def test_ranges_times_and_partitions_are_planned_as_with_nodes(tmp_path: Path) -> None:
    url = archived(tmp_path)
    assert stored_schema(parse_options({"topic": "default", "archive": url}, READ)) == SCHEMA
    assert sorted(read(url, minPartitions="7")) == list(range(27))
    assert read(url, slots="0") == list(range(27))
    position = json.dumps({"v": 1, "cores": {"node-a/0": offsets.position(1, 1)}})
    assert read(url, endingOffsets="latest", startingTimestamp="2999-01-01T00:00:00+00:00") == []
    assert read(url, startingOffsets=position)[:6] == list(range(12, 18))


def test_a_hole_fails_the_read_or_is_left_out(tmp_path: Path) -> None:
    url = archived(tmp_path, holes=True)
    with pytest.raises(DataLost, match="3 bundles of segment 1 are lost"):
        read(url)
    with pytest.raises(DataLost):
        read(url, slots="0")
    assert read(url, failOnDataLoss="false") == [*range(9), *range(18, 27)]


def test_what_is_archived_later_is_read_later(tmp_path: Path) -> None:
    first, second = sealed_segments(tmp_path / "a", [numbers(0), numbers(1)])
    writer = ArchiveWriter(f"file://{tmp_path}/archive")
    writer.archive({0: first})
    assert read(f"file://{tmp_path}/archive") == [0, 1, 2]
    writer.archive({1: second})
    assert read(f"file://{tmp_path}/archive") == list(range(6))


def test_only_batch_reads_of_one_place_take_an_archive(tmp_path: Path) -> None:
    url = archived(tmp_path)
    with pytest.raises(ConfigError, match="'archive' is unknown"):
        parse_options({"topic": "default", "archive": url}, READ_STREAM)
    with pytest.raises(ConfigError, match="leave out 'nodes'"):
        read(url, nodes=str(tmp_path))
    with pytest.raises(UnknownTopic, match="did you mean 'default'"):
        TopicReader(parse_options({"topic": "defaults", "archive": url}, READ), SCHEMA).partitions()
    (tmp_path / "empty").mkdir()
    with pytest.raises(UsageError, match="has no archive"):
        read(f"file://{tmp_path}/empty")
