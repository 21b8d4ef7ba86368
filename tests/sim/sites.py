"""Every call on the disk seam that stands in the source of the engine, found by parsing it: what the sweeps must reach.

A call counts where its receiver is a disk or a file: by its name, by the annotation of a parameter, or because it was opened right
there. A read through a function that was handed over (`read(length, offset)`) counts where that function is called.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import quiver_actors
from quiver_actors.store.disk.interposed import KINDS, MUTATING_KINDS
from tests.disks.faulty import CallSite

ROOT = Path(str(quiver_actors.__file__)).parent
PARTS = ("store", "transactions")
"""Rooms of which an engine consists."""
NO_PARTS = ("store.inspection", "store.objects")
"""Rooms in these whose calls are not swept. Object stores have suites of their own: tests/contract and the kills of the archiver."""
MODULES = frozenset(["node.topics.catalogue", "node.worker.adoption"])
"""What else changes files that data depend on."""
_DISKS = frozenset(["store.disk.interposed", "store.disk.posix"])
_RECEIVERS = frozenset(["disk", "file", "copy"])
_ANNOTATIONS = frozenset(["Disk", "DiskFile"])
_OPENING = frozenset(["create", "open_read", "open_write"])
_READS = frozenset(["read", "pread", "_read", "_pread"])
"""Names of functions that were handed over: `Read`."""

_READS_OF_OTHERS = {
    # Through `SalvageReader` or `LogSource`, whose own calls count; or of bytes in memory: a mapped segment.
    "quiver_actors.store.jobs.rebuild",
    "quiver_actors.store.jobs.rebuild_compacted",
    "quiver_actors.store.segment.salvage",
    "quiver_actors.store.segment.flips",
    "quiver_actors.store.segment.arrow_ipc:walk_messages",
    "quiver_actors.store.recovery.replay",
    "quiver_actors.store.segment.reader",
    "quiver_actors.store.segment.integrity",
    "quiver_actors.store.segment.entry_places",
    "quiver_actors.store.segment.dictionaries",
    # Of what replay has in memory.
    "quiver_actors.store.staged.keys",
    # Of a transaction and an epoch.
    "quiver_actors.transactions.decisions",
}


@cache
def call_sites() -> frozenset[CallSite]:
    """All of them."""
    found = {site for module, path in modules() for site in _sites_of(module, path)}
    return frozenset(found)


def mutating_sites() -> set[CallSite]:
    """Return the sites that change the disk: before each of them a crash means something."""
    return {site for site in call_sites() if site.kind in MUTATING_KINDS}


def modules() -> Iterator[tuple[str, Path]]:
    """Name and file of every module that an engine consists of."""
    for path in sorted(ROOT.rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        name = ".".join(parts)
        is_part = name in MODULES or (parts[0] in PARTS and not name.startswith(NO_PARTS))
        if is_part and name not in _DISKS:
            yield ".".join(("quiver_actors", *parts)).removesuffix(".__init__"), path


def _sites_of(module: str, path: Path) -> Iterator[CallSite]:
    for function, node in _functions(ast.parse(path.read_text(encoding="utf-8")), ""):
        kinds = set(_kinds_in(node))
        if not {module, f"{module}:{function}"} & _READS_OF_OTHERS:
            kinds |= set(_handed_reads_in(node))
        yield from (CallSite(kind, module, function) for kind in kinds)


def _functions(node: ast.AST, prefix: str) -> Iterator[tuple[str, ast.FunctionDef]]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef):
            yield prefix + child.name, child
        elif isinstance(child, ast.ClassDef):
            yield from _functions(child, f"{prefix}{child.name}.")


def _kinds_in(function: ast.FunctionDef) -> Iterator[str]:
    receivers = _RECEIVERS | set(_opened_in(function))
    for call in ast.walk(function):
        if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Attribute):
            continue
        receiver = ast.unparse(call.func.value).rpartition(".")[2].lstrip("_")
        if call.func.attr in KINDS and receiver in receivers:
            yield call.func.attr


def _handed_reads_in(function: ast.FunctionDef) -> Iterator[str]:
    for call in ast.walk(function):
        if isinstance(call, ast.Call) and len(call.args) == 2:
            name = ast.unparse(call.func)
            if name.removeprefix("self.") in _READS and name != "self.read":
                yield "read"


def _opened_in(function: ast.FunctionDef) -> Iterator[str]:
    """Names of parameters and variables that are files or disks for sure."""
    for node in ast.walk(function):
        if isinstance(node, ast.arg) and node.annotation is not None and ast.unparse(node.annotation) in _ANNOTATIONS:
            yield node.arg.lstrip("_")
        elif isinstance(node, ast.Assign) and isinstance(node.value, ast.Call):
            opens = isinstance(node.value.func, ast.Attribute) and node.value.func.attr in _OPENING
            yield from (target.id for target in node.targets if opens and isinstance(target, ast.Name))
