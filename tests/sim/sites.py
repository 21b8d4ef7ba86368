"""Every call on the disk seam that stands in the source of the engine, found by parsing it: what the sweeps must reach."""

from __future__ import annotations

import ast
import importlib.util
from collections.abc import Iterator
from pathlib import Path

from quiver_actors.disk.faulty import CallSite
from quiver_actors.disk.interposed import KINDS, MUTATING_KINDS

MODULES = (
    "quiver_actors.engine.engine",
    "quiver_actors.engine.log_queue",
    "quiver_actors.engine.shelf",
    "quiver_actors.jobs",
    "quiver_actors.recovery",
    "quiver_actors.sealing",
    "quiver_actors.disk.protocol",
    "quiver_actors.wal.log",
    "quiver_actors.wal.reader",
    "quiver_actors.segment.reader",
)
_RECEIVERS = ("disk", "file", "copy")
_INDIRECT = {"_read": "read", "pread": "read"}
"""Reads through a function that was handed over."""
_UNREACHED = {
    # It needs a real descriptor, which a simulated disk does not have; the contract suite and the worker's tests open it.
    CallSite("open_read", "quiver_actors.engine.shelf", "Shelf.open"),
    CallSite("size", "quiver_actors.engine.shelf", "Shelf.open"),
}


def call_sites() -> set[CallSite]:
    """All of them."""
    return {site for module in MODULES for site in _sites_of(module)} - _UNREACHED


def mutating_sites() -> set[CallSite]:
    """Those that change the disk: before each of them a crash means something."""
    return {site for site in call_sites() if site.kind in MUTATING_KINDS}


def _sites_of(module: str) -> Iterator[CallSite]:
    spec = importlib.util.find_spec(module)
    assert spec is not None
    assert spec.origin is not None
    for function, node in _functions(ast.parse(Path(spec.origin).read_text(encoding="utf-8")), ""):
        for call in ast.walk(node):
            kind = _kind_of(call, module)
            if kind is not None:
                yield CallSite(kind, module, function)


def _functions(node: ast.AST, prefix: str) -> Iterator[tuple[str, ast.AST]]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef):
            yield prefix + child.name, child
        elif isinstance(child, ast.ClassDef):
            yield from _functions(child, f"{prefix}{child.name}.")


def _kind_of(call: ast.AST, module: str) -> str | None:
    if not isinstance(call, ast.Call):
        return None
    if isinstance(call.func, ast.Name):
        return _INDIRECT.get(call.func.id)
    if not isinstance(call.func, ast.Attribute):
        return None
    if module.endswith(".reader"):
        return _INDIRECT.get(call.func.attr) if ast.unparse(call.func.value) == "self" else None
    receiver = ast.unparse(call.func.value).rpartition(".")[2].lstrip("_")
    return call.func.attr if receiver in _RECEIVERS and call.func.attr in KINDS else None
