"""The shape of the source: imports only go down, light modules stay light, functions stay short, banned calls stay out."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from tests.tidy.outlines import Outline, outline

ROOT = Path(__file__).parents[2]
FUNCTION_LINES_MAX = 69

ROOMS_MAX = 16
ARROWS_MAX = 79
#: The rooms from the bottom to the top. A module imports from its own room and from rooms of lower floors.
FLOORS = (
    ("shm",),
    ("supervisor",),
    ("errors",),
    ("base",),
    ("store",),
    ("transactions", "query"),
    ("client", "node"),
    ("embedded", "flight"),
    ("aio",),
    ("archive",),
    ("forward",),
    ("spark",),
    ("cli",),
    ("demo",),
)
FLOOR_OF = {room: number for number, rooms in enumerate(FLOORS) for room in rooms}
LIGHT = [
    "quiver_actors",
    "quiver_actors.node.composition",
    "quiver_actors.cli.main",
    "quiver_actors.cli.commands.status",
    "pyspark_quiver",
]
INSIDE = (
    "quiver_actors.store.disk",
    "quiver_actors.store.engine",
    "quiver_actors.store.recovery",
    "quiver_actors.node",
    "quiver_actors.embedded",
)
"""Modules that a client never loads, itself or through what it imports."""


def modules() -> Iterator[tuple[str, Path]]:
    for package in ("quiver_actors", "shm", "supervisor"):
        prefix = "" if package == "quiver_actors" else "quiver_actors."
        for path in sorted((ROOT / package).rglob("*.py")):
            relative = path.relative_to(ROOT)
            if package == "quiver_actors" and relative.parts[1] in ("shm", "supervisor"):
                continue
            name = ".".join(relative.with_suffix("").parts).removesuffix(".__init__")
            yield prefix + name, path


def room_of(module: str) -> str:
    """The entry of quiver_actors/ that a module lies in; empty for the package itself."""
    return module.partition(".")[2].partition(".")[0]


@cache
def imports() -> dict[str, set[str]]:
    """Each module with the modules of ours that it imports anywhere in its text, type checking and functions included."""
    paths = dict(modules())
    found: dict[str, set[str]] = {}
    for module, path in paths.items():
        named = set(imports_of(module, outline(path), path.name == "__init__.py"))
        # `from package import name` names a module or something that the package itself defines.
        members = {each.rpartition(".")[0] for each in named if each in paths and each.rpartition(".")[0] in named}
        found[module] = {each for each in named if each in paths and each not in members} - {module}
    return found


def circles(graph: dict[str, set[str]]) -> list[str]:
    """Modules that can reach themselves."""
    found = []
    for start in graph:
        seen: set[str] = set()
        ahead = list(graph[start])
        while ahead:
            module = ahead.pop()
            if module not in seen:
                seen.add(module)
                ahead += graph[module]
        if start in seen:
            found.append(start)
    return found


def imports_of(module: str, of_file: Outline, is_package: bool) -> Iterator[str]:
    for node in of_file.imports:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        else:
            base = node.module or ""
            if node.level:
                parents = module.split(".") if is_package else module.split(".")[:-1]
                base = ".".join([*parents[: len(parents) - node.level + 1], *([base] if base else [])])
            yield base
            yield from (f"{base}.{alias.name}" for alias in node.names)


def test_no_module_imports_itself_through_others() -> None:
    assert circles(imports()) == []


def test_a_circle_is_found() -> None:
    assert circles({"a": {"b"}, "b": {"c"}, "c": {"b"}}) == ["b", "c"]


def test_imports_only_go_down() -> None:
    wrong = []
    for module, imported in imports().items():
        for other in imported:
            below, above = room_of(other), room_of(module)
            if above and below != above and (not below or FLOOR_OF[below] >= FLOOR_OF[above]):
                wrong.append(f"{module} imports {other}")
    # The version is in the package itself.
    assert [line for line in wrong if not line.endswith("imports quiver_actors")] == []


def test_rooms_and_arrows_are_few() -> None:
    entries = {path.name for path in (ROOT / "quiver_actors").iterdir() if not path.name.startswith("__")}
    rooms = entries - {"errors.py", "py.typed"}
    assert len(rooms) <= ROOMS_MAX, sorted(rooms)
    assert rooms == set(FLOOR_OF) - {"errors"}
    arrows = {(room_of(a), room_of(b)) for a, imported in imports().items() for b in imported} - {("", "")}
    between = {(a, b) for a, b in arrows if a and b and a != b}
    assert len(between) <= ARROWS_MAX, f"{len(between)} arrows: {sorted(between)}"


def test_every_room_says_what_it_owns() -> None:
    for room in set(FLOOR_OF) - {"errors"}:
        tree = ast.parse((ROOT / "quiver_actors" / room / "__init__.py").read_text())
        assert ast.get_docstring(tree), f"quiver_actors/{room}/__init__.py says in one sentence what the room owns"


def test_the_page_about_the_architecture_names_every_room() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text()
    named = set(re.findall(r"^\| `([^`/]+)/` \| ", page.split("## Rooms")[1], re.MULTILINE))
    assert set(FLOOR_OF) - {"errors"} <= named


@pytest.mark.parametrize("module", ["quiver_actors.client", "quiver_actors.aio"])
def test_clients_load_nothing_of_the_inside_of_a_worker(module: str) -> None:
    code = f"import sys, {module}; print([m for m in sys.modules if m.startswith({INSIDE!r})])"
    found = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"


@pytest.mark.parametrize("module", LIGHT)
def test_light_modules_load_neither_pyarrow_nor_numpy(module: str) -> None:
    code = f"import sys, {module}; print([m for m in ('pyarrow', 'numpy', 'pandas') if m in sys.modules])"
    found = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"


def test_functions_are_short() -> None:
    long = []
    for path in [*(path for _, path in modules()), *sorted((ROOT / "tests").rglob("*.py"))]:
        for line, name, lines in outline(path).functions:
            if lines > FUNCTION_LINES_MAX:
                long.append(f"{path.relative_to(ROOT)}:{line} {name} ({lines})")
    assert long == []


def test_no_sleep_in_tests_and_no_pack_into_shared_memory() -> None:
    """A sleeping test is slow or flaky; `pack_into` lets a reader of live memory see a transient zero."""
    found = [
        f"{path.relative_to(ROOT)}: {banned}"
        for directory, banned in (("tests", "time.sleep" + "("), ("shm", ".pack_into" + "("))
        for path in sorted((ROOT / directory).rglob("*.py"))
        if banned in path.read_text() and path.name != "test_layers.py"
    ]
    assert found == []


def test_only_the_disk_seam_syncs_and_renames() -> None:
    banned = ("os.fsync(", "os.fdatasync(", "os.rename(", "os.replace(", "os.pwrite(", "os.pwritev(")
    allowed = ("store.disk", "store.inspection", "cli", "spark", "forward", "shm", "supervisor", "node.composition")
    not_durable = ("node.worker.listener", "archive.reading.cached_file")  # renames a socket; writes a cache
    found = [
        f"{path.relative_to(ROOT)}: {call}"
        for module, path in modules()
        if not module.removeprefix("quiver_actors.").startswith((*allowed, *not_durable))
        for call in banned
        if call in path.read_text()
    ]
    assert found == []
