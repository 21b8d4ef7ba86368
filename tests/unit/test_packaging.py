"""The wheel holds every module, the linked packages included, and no generic top-level name."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def wheel_names(tmp_path_factory: pytest.TempPathFactory) -> set[str]:
    pytest.importorskip("hatchling")
    directory = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(directory)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True, timeout=100)
    (wheel,) = directory.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        return set(archive.namelist())


def test_every_module_is_in_the_wheel(wheel_names: set[str]) -> None:
    linked = [ROOT / "quiver_actors" / "shm", ROOT / "quiver_actors" / "supervisor"]
    sources = [ROOT / "pyspark_quiver", ROOT / "quiver_actors", *linked]
    modules = {str(path.relative_to(ROOT)) for source in sources for path in source.rglob("*.py")}
    assert modules - wheel_names == set()
    assert "quiver_actors/py.typed" in wheel_names


def test_only_our_names_are_installed(wheel_names: set[str]) -> None:
    packages = {name.split("/")[0] for name in wheel_names if ".dist-info" not in name}
    assert packages == {"quiver_actors", "pyspark_quiver"}
