"""The shape of the source: imports only go down, light modules stay light, functions stay short, banned calls stay out."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FUNCTION_LINES_MAX = 69

#: Lower may not import higher. A package stands for everything in it; the longest matching prefix decides.
RANKS = {
    "quiver_actors.shm": 0,
    "quiver_actors.supervisor": 1,
    "quiver_actors.errors": 2,
    "quiver_actors.units": 2,
    "quiver_actors.model": 2,
    "quiver_actors.config": 2,
    "quiver_actors.default_run_dir": 2,
    "quiver_actors.core_dirs": 2,
    "quiver_actors.clock": 2,
    "quiver_actors.checksum": 2,
    "quiver_actors.metrics": 2,
    "quiver_actors.retention": 2,
    "quiver_actors.topics": 4,
    "quiver_actors.envelope": 3,
    "quiver_actors.protocol": 3,
    "quiver_actors.core_file": 3,
    "quiver_actors.disk": 3,
    "quiver_actors.segment": 4,
    "quiver_actors.subscriber": 4,
    "quiver_actors.wal": 5,
    "quiver_actors.encoding": 5,
    "quiver_actors.paths": 5,
    "quiver_actors.events": 5,
    "quiver_actors.sealing": 6,
    "quiver_actors.ballast": 6,
    "quiver_actors.rebuild": 6,
    "quiver_actors.quarantine": 6,
    "quiver_actors.jobs": 7,
    "quiver_actors.rescue": 8,
    "quiver_actors.transactions": 8,
    "quiver_actors.transactions.model": 3,
    "quiver_actors.transactions.decisions": 4,
    "quiver_actors.transactions.decision_files": 4,
    "quiver_actors.transactions.claims": 4,
    "quiver_actors.file_systems": 3,
    "quiver_actors.upkeep": 8,
    "quiver_actors.footprint": 8,
    "quiver_actors.engine_figures": 8,
    "quiver_actors.recovery": 8,
    "quiver_actors.engine": 9,
    "quiver_actors.adoption_watch": 9,
    "quiver_actors.node_dirs": 10,
    "quiver_actors.node": 10,
    "quiver_actors.worker": 11,
    "quiver_actors.client": 12,
    "quiver_actors.aio": 12,
}
#: Adapters and commands: may import everything, and nothing above imports them.
TOP = (
    "quiver_actors.cli",
    "quiver_actors.spark",
    "quiver_actors.flight",
    "quiver_actors.demo",
    "quiver_actors.inspection",
    "quiver_actors.forward",
    "quiver_actors.observe",
    "quiver_actors.deploy",
    "quiver_actors.doctor",
)
LIGHT = ["quiver_actors", "quiver_actors.node", "quiver_actors.cli.main", "quiver_actors.cli.status", "pyspark_quiver"]


def modules() -> Iterator[tuple[str, Path]]:
    for package in ("quiver_actors", "shm", "supervisor"):
        prefix = "" if package == "quiver_actors" else "quiver_actors."
        for path in sorted((ROOT / package).rglob("*.py")):
            relative = path.relative_to(ROOT)
            if package == "quiver_actors" and relative.parts[1] in ("shm", "supervisor"):
                continue
            name = ".".join(relative.with_suffix("").parts).removesuffix(".__init__")
            yield prefix + name, path


def rank_of(module: str) -> int | None:
    parts = module.split(".")
    for length in range(len(parts), 0, -1):
        rank = RANKS.get(".".join(parts[:length]))
        if rank is not None:
            return rank
    return 99 if module.startswith(TOP) else None


def imports_of(module: str, tree: ast.AST, is_package: bool) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parents = module.split(".") if is_package else module.split(".")[:-1]
                base = ".".join([*parents[: len(parents) - node.level + 1], *([base] if base else [])])
            yield base
            yield from (f"{base}.{alias.name}" for alias in node.names)


def test_imports_only_go_down() -> None:
    wrong = []
    for module, path in modules():
        rank = rank_of(module)
        if module == "quiver_actors" or rank == 99:
            continue
        assert rank is not None, f"{module} has no rank: add it to RANKS"
        for imported in imports_of(module, ast.parse(path.read_text()), path.name == "__init__.py"):
            other = rank_of(imported)
            if imported.startswith("quiver_actors.") and other is not None and other > rank:
                wrong.append(f"{module} (rank {rank}) imports {imported} (rank {other})")
    # The node's worker entry is imported after the fork, by the one function that is run there.
    assert [
        line for line in wrong if not line.startswith("quiver_actors.node (rank 10) imports quiver_actors.worker")
    ] == []


def test_the_page_about_the_architecture_names_every_room() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text()
    named = set(
        " ".join(re.findall(r"^\| `([^`]+)` \| ", page.split("## Rooms of the house")[1], re.MULTILINE)).split()
    )
    packages = {f"{path.name}/" for path in (ROOT / "quiver_actors").iterdir() if (path / "__init__.py").exists()}
    modules_of_it = {path.stem for path in (ROOT / "quiver_actors").glob("*.py")} - {"__init__"}
    assert packages | modules_of_it <= named


def test_clients_know_nothing_of_the_inside_of_a_worker() -> None:
    inside = ("quiver_actors.worker", "quiver_actors.engine", "quiver_actors.recovery", "quiver_actors.disk")
    assert [
        f"{module} imports {imported}"
        for module, path in modules()
        if module.startswith(("quiver_actors.client", "quiver_actors.aio"))
        for imported in imports_of(module, ast.parse(path.read_text()), path.name == "__init__.py")
        if imported.startswith(inside)
    ] == []


@pytest.mark.parametrize("module", LIGHT)
def test_light_modules_load_neither_pyarrow_nor_numpy(module: str) -> None:
    code = f"import sys, {module}; print([m for m in ('pyarrow', 'numpy', 'pandas') if m in sys.modules])"
    found = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"


def test_functions_are_short() -> None:
    long = []
    for path in [*(path for _, path in modules()), *sorted((ROOT / "tests").rglob("*.py"))]:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.end_lineno is not None:
                lines = node.end_lineno - node.lineno + 1
                if lines > FUNCTION_LINES_MAX:
                    long.append(f"{path.relative_to(ROOT)}:{node.lineno} {node.name} ({lines})")
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
    allowed = ("disk", "cli", "demo", "spark", "inspection", "forward")
    not_durable = ("quiver_actors.worker.listener",)  # renames a socket
    found = [
        f"{path.relative_to(ROOT)}: {call}"
        for module, path in modules()
        if module.startswith("quiver_actors.")
        and module.split(".")[1] not in (*allowed, "shm", "supervisor", "node")
        and module not in not_durable
        for call in banned
        if call in path.read_text()
    ]
    assert found == []
