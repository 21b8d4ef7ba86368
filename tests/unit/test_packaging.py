"""The wheel holds every module, the linked packages included, no generic top-level name, the license, and the pages."""

from __future__ import annotations

import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Iterator
from email import message_from_bytes
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with the wheel and the source distribution."""
    pytest.importorskip("hatchling")
    directory = tmp_path_factory.mktemp("built")
    command = [sys.executable, "-m", "hatchling", "build", "--directory", str(directory)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True, timeout=200)
    return directory


@pytest.fixture(scope="module")
def wheel(built: Path) -> Iterator[zipfile.ZipFile]:
    (path,) = built.glob("*.whl")
    with zipfile.ZipFile(path) as archive:
        yield archive


@pytest.fixture(scope="module")
def wheel_names(wheel: zipfile.ZipFile) -> set[str]:
    return set(wheel.namelist())


@pytest.fixture(scope="module")
def source(built: Path) -> Iterator[tarfile.TarFile]:
    (path,) = built.glob("*.tar.gz")
    with tarfile.open(path) as archive:
        yield archive


def test_every_module_is_in_the_wheel(wheel_names: set[str]) -> None:
    linked = [ROOT / "quiver_actors" / "shm", ROOT / "quiver_actors" / "supervisor"]
    sources = [ROOT / "pyspark_quiver", ROOT / "quiver_actors", *linked]
    modules = {str(path.relative_to(ROOT)) for source in sources for path in source.rglob("*.py")}
    assert modules - wheel_names == set()
    assert "quiver_actors/py.typed" in wheel_names


def test_only_our_names_are_installed(wheel_names: set[str]) -> None:
    packages = {name.split("/")[0] for name in wheel_names if ".dist-info" not in name}
    assert packages == {"quiver_actors", "pyspark_quiver"}


def test_the_license_is_in_both_and_declared(wheel: zipfile.ZipFile, source: tarfile.TarFile) -> None:
    text = (ROOT / "LICENSE").read_bytes()
    (info,) = {name.split("/")[0] for name in wheel.namelist() if ".dist-info/" in name}
    assert wheel.read(f"{info}/licenses/LICENSE") == text
    held = source.extractfile(f"{info.removesuffix('.dist-info')}/LICENSE")
    assert held is not None
    assert held.read() == text
    metadata = message_from_bytes(wheel.read(f"{info}/METADATA"))
    assert (metadata["License-Expression"], metadata.get_all("License-File")) == ("Apache-2.0", ["LICENSE"])


def test_what_the_package_index_shows_is_the_readme(wheel: zipfile.ZipFile) -> None:
    """Its links are checked in tests/tidy/test_front_pages.py."""
    (name,) = (name for name in wheel.namelist() if name.endswith(".dist-info/METADATA"))
    metadata = message_from_bytes(wheel.read(name))
    assert metadata["Description-Content-Type"] == "text/markdown"
    shown = metadata.get_payload(decode=True)
    assert isinstance(shown, bytes)
    assert shown.decode().strip() == (ROOT / "README.md").read_text().strip()


def test_pages_and_examples_are_in_the_source_distribution(source: tarfile.TarFile) -> None:
    held = {name.partition("/")[2] for name in source.getnames()}
    pages = [*(ROOT / "docs").glob("*.md"), *(ROOT / "examples").glob("*.*"), *ROOT.glob("*.md")]
    assert {str(page.relative_to(ROOT)) for page in pages} <= held
