"""`format("quiver")` through Spark Connect: nothing is registered, neither by the client nor on the server."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.integration.node_process import ROOT
from tests.integration.spark_node import Node

pytestmark = [pytest.mark.spark, pytest.mark.long, pytest.mark.timeout(400)]

#: A client program; with a local address it starts a server of its own, in a Java process as every other.
PROGRAM = """
import sys
from quiver_actors.errors import UsageError
from quiver_actors.spark import ensure_java, read_local, session_conf, use
ensure_java()
from pyspark.sql import SparkSession
own = {"spark.ui.enabled": "false", "spark.log.level": "OFF", "spark.sql.shuffle.partitions": "2"}
own |= {"spark.local.dir": sys.argv[1] + "/local", "spark.sql.warehouse.dir": sys.argv[1] + "/warehouse"}
builder = SparkSession.builder.remote("local[2]")
for key, value in {**session_conf(), **own}.items():
    builder = builder.config(key, value)
spark = use(builder.getOrCreate())
print(type(spark).__module__)
quiver = {"topic": "connected"}
spark.range(0, 500).write.format("quiver").options(**quiver).mode("append").save()
spark.sql("CREATE TEMPORARY VIEW connected (id BIGINT) USING quiver OPTIONS (topic 'connected')")
spark.sql("INSERT INTO connected VALUES (500)")
print(spark.read.format("quiver").options(**quiver).load().selectExpr("sum(id)").collect()[0][0])
print(spark.sql("SELECT count(*) FROM connected WHERE id >= 100").collect()[0][0])
source = spark.readStream.format("quiver").options(startingOffsets="earliest", subscriber="connect", **quiver)
stream = source.schema("id BIGINT").load()
writer = stream.writeStream.format("quiver").options(topic="streamed", checkpointLocation=sys.argv[1] + "/checkpoint")
query = writer.trigger(availableNow=True).start()
assert query.awaitTermination(240)
print(spark.read.format("quiver").option("topic", "streamed").load().distinct().count())
try:
    read_local(spark, "connected")
except UsageError as error:
    print("classic" in str(error))
spark.stop()
"""


def test_a_client_of_spark_connect(tmp_path: Path) -> None:
    node = Node("[topics.connected]\n[topics.streamed]\n")
    try:
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM, str(tmp_path)],
            cwd=tmp_path,
            env={
                **os.environ,
                "PYTHONPATH": str(ROOT),
                "PYSPARK_PYTHON": sys.executable,
                "SPARK_LOCAL_IP": "127.0.0.1",
                "QUIVER_RUN_DIR": str(node.run_dir),
            },
            capture_output=True,
            text=True,
            timeout=360,
            check=False,
        )
    finally:
        node.remove()
    assert done.returncode == 0, done.stderr[-3000:]
    module, total, counted, streamed, refused = done.stdout.split()
    assert module.startswith("pyspark.sql.connect")
    assert (total, counted, streamed) == (str(sum(range(501))), "401", "501")
    assert refused == "True", "read_local says that it needs a classic session"
