"""Reading where the bundles are: tasks prefer the host of the node that owns their range.

`format("quiver")` cannot say this to Spark: a Python partition has no preferred locations. An RDD has. Classic sessions only (Spark Connect
has no RDDs). Correct wherever a task runs: a range of another host comes through its node's Flight server.
"""

from __future__ import annotations

import base64
import pickle
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from quiver_actors.errors import UsageError
from quiver_actors.spark.nodes import node_set
from quiver_actors.spark.options import READ, parse_options
from quiver_actors.spark.reader import TopicPartition, TopicReader, read_partition, stored_schema

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

LOCALITIES = ("prefer", "none")


def read_local(
    spark: SparkSession, topic: str, *, locality: str = "prefer", schema: StructType | None = None, **options: str
) -> DataFrame:
    """The rows of a batch read, by tasks that Spark places on the hosts of their bundles as far as `spark.locality.wait` allows.

    Args:
        locality: `prefer`, or `none` for no placement.
        schema: columns wanted; None: all that are stored.
        options: of a batch read; see docs/spark.md.

    Raises:
        UsageError: a Spark Connect session, or another locality.
    """
    if locality not in LOCALITIES:
        raise UsageError(f"locality {locality!r} is unknown: expected one of {', '.join(LOCALITIES)}")
    if getattr(spark, "_jvm", None) is None:
        raise UsageError("read_local needs a classic session: Spark Connect has no RDDs; use format('quiver')")
    checked = parse_options({**options, "topic": topic}, READ)
    columns = stored_schema(checked) if schema is None else schema
    partitions = [each for each in TopicReader(checked, columns).partitions() if isinstance(each, TopicPartition)]
    if not partitions:
        return spark.createDataFrame([], columns)
    members = node_set(checked).members()
    located = []
    for partition in partitions:
        member = members.get(partition.place.node)
        hosts = list(member.hosts) if member is not None and locality == "prefer" else []
        located.append((base64.b64encode(pickle.dumps(partition)).decode(), hosts))

    def read(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for text in batch.column(0).to_pylist():
                yield from read_partition(checked, pickle.loads(base64.b64decode(text)))

    frame = spark.createDataFrame(_located(spark, located).map(lambda text: (text,)), "partition string")
    return frame.mapInArrow(read, columns)


def _located(spark: SparkSession, elements: Sequence[tuple[str, list[str]]]) -> Any:
    """An RDD of one element a partition, each with its preferred hosts."""
    from pyspark import RDD
    from pyspark.serializers import CPickleSerializer

    context = spark.sparkContext
    jvm: Any = context._jvm
    serializer = CPickleSerializer()
    to_seq = jvm.org.apache.spark.api.python.PythonUtils.toSeq
    pairs = jvm.java.util.ArrayList()
    for element, hosts in elements:
        names = jvm.java.util.ArrayList()
        for host in hosts:
            names.add(host)
        pairs.add(jvm.scala.Tuple2(serializer.dumps(element), to_seq(names)))
    kind = jvm.scala.reflect.ClassTag.apply(jvm.java.lang.Class.forName("[B"))
    return RDD(context._jsc.sc().makeRDD(to_seq(pairs), kind).toJavaRDD(), context, serializer)
