"""Nothing is installed on the hosts: Quiver and its Python travel with the job, by `spark-submit --archives env.tar.gz#env`."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
from pathlib import Path

import pyspark
import pytest

import quiver_actors
from quiver_actors.spark.testing import StandaloneCluster
from tests.cluster.looking import everywhere

pytestmark = [pytest.mark.spark, pytest.mark.cluster, pytest.mark.timeout(900)]

OWN = ("quiver_actors", "pyspark_quiver")
SPARK = Path(pyspark.__file__).parent
ROWS = 400

JOB = """
import sys

import pyarrow as pa
from pyspark.sql import SparkSession

spark = SparkSession.builder.getOrCreate()
count = int(sys.argv[1])
spark.range(0, count, 1, 4).write.format("quiver").mode("append").save("archives")


def places(batches):
    import quiver_actors

    for batch in batches:
        yield pa.record_batch({"place": [quiver_actors.__file__] * batch.num_rows})


frame = spark.read.format("quiver").load("archives")
print("rows", frame.distinct().count())
for row in frame.mapInArrow(places, "place string").distinct().collect():
    print("place", row.place)
spark.stop()
"""


def packed_environment(directory: Path) -> Path:
    """`env.tar.gz`, and what is in it unpacked as `env` beside it, as the driver needs it.

    A virtual environment with Quiver in it. To keep it small the other packages are not packed but linked, without any Quiver among them.
    """
    environment, others = directory / "env", directory / "others"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", environment], check=True, timeout=60)
    packages = environment / "lib" / f"python{sysconfig.get_python_version()}" / "site-packages"
    source = Path(quiver_actors.__file__).parent.parent
    for name in OWN:
        shutil.copytree(source / name, packages / name, ignore=shutil.ignore_patterns("__pycache__"))
    others.mkdir()
    for package in SPARK.parent.iterdir():
        if package.suffix != ".pth" and not package.name.startswith(OWN):
            (others / package.name).symlink_to(package)
    (packages / "others.pth").write_text(f"{others}\n")
    archive = directory / "env.tar.gz"
    with tarfile.open(archive, "w:gz", compresslevel=1) as packed:
        packed.add(environment, ".")
    return archive


def test_an_environment_that_is_shipped_with_the_job(cluster: StandaloneCluster, tmp_path: Path) -> None:
    archive = packed_environment(tmp_path)
    (tmp_path / "job.py").write_text(JOB)
    inherited = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    environment = {
        **inherited,
        **cluster.driver_environment(),
        "PYSPARK_PYTHON": "env/bin/python",
        "SPARK_HOME": str(SPARK),
    }
    settings = [f"--conf={key}={value}" for key, value in cluster.settings().items()]
    submit = [str(SPARK / "bin" / "spark-submit"), *settings, "--archives", f"{archive}#env"]
    done = subprocess.run(
        [*submit, "job.py", str(ROWS)],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    said = [line.partition(" ") for line in done.stdout.splitlines()]
    assert [value for word, _, value in said if word == "rows"] == [str(ROWS)]
    places = [Path(value) for word, _, value in said if word == "place"]
    assert places
    # Below the directories of the hosts' Spark workers: each has unpacked it for itself.
    assert all(place.is_relative_to(cluster.workspace) and "env" in place.parts for place in places), places
    assert everywhere(cluster, "archives") == list(range(ROWS))
