"""Every module has its unit test: under its own path, by a test beside that path, or where docs/developing.md says its kind is tested."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from tests.tidy.outlines import outline
from tests.tidy.test_layers import ROOT, imports_of, modules

UNIT = ROOT / "tests" / "unit"


@cache
def rows() -> dict[str, tuple[str, ...]]:
    """Where the modules below a directory are tested, by that directory: the table of docs/developing.md, "The tree"."""
    page = (ROOT / "docs" / "developing.md").read_text(encoding="utf-8")
    table = page.split("| modules | tested through | in |\n")[1].split("\n\n")[0]
    found = {}
    for line in table.splitlines()[1:]:
        _, directories, _, places, _ = line.split("|")
        for directory in re.findall(r"`([^`]+)/`", directories):
            found[directory] = tuple(re.findall(r"`([^`]+)`", places))
    return found


def path_of(module: str) -> Path:
    """The path of a module below the package, without its suffix."""
    return Path(*module.split(".")[1:])


@cache
def imported_beside(directory: Path) -> set[str]:
    """Modules that the tests of one directory import."""
    return {
        name for path in directory.glob("test_*.py") for name in imports_of("tests", outline(path), is_package=False)
    }


def untested() -> Iterator[str]:
    """Modules without a test of their own, and without a row of the table."""
    for module, path in modules():
        own = UNIT / path_of(module)
        if path.name == "__init__.py" or own.with_name(f"test_{own.name}.py").exists():
            continue
        directories = {str(parent) for parent in path_of(module).parents}
        if not directories & rows().keys() and module not in imported_beside(own.parent):
            yield module


def test_every_module_has_a_test_or_a_row() -> None:
    expected = "a test under its path in tests/unit, or a row of the table in docs/developing.md"
    # Errors and the package itself are values that every test uses.
    found = [module for module in untested() if module != "quiver_actors.errors"]
    assert found == [], f"expected for each: {expected}"


def test_the_rows_name_directories_and_tests_that_exist() -> None:
    directories = {str(parent) for module, _ in modules() for parent in path_of(module).parents}
    assert rows().keys() <= directories
    assert [place for places in rows().values() for place in places if not (ROOT / place).exists()] == []
    assert all(rows().values())


def test_every_test_file_lies_beside_what_it_tests() -> None:
    """A directory of tests/unit that mirrors nothing is a directory whose room was moved without its tests."""
    directories = {str(parent) for module, _ in modules() for parent in path_of(module).parents}
    strays = {str(path.parent.relative_to(UNIT)) for path in UNIT.rglob("test_*.py")} - directories
    assert strays <= {"."} | STRAYS


STRAYS = {"cli/deployment"}
"""The directory holds templates; its tests check what `quiver deploy` makes of them."""
