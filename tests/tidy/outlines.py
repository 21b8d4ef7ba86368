"""The outline of each Python file, which several checks of the tree look at. To parse the whole tree takes seconds, so it is done once:
one process runs all of these checks (tests/support/dispatching.py)."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

_HOLDS_STATEMENTS = ("body", "orelse", "finalbody", "handlers", "cases")


@dataclass(frozen=True)
class Outline:
    """What a file consists of."""

    docstrings: tuple[tuple[int, str], ...]
    """Line and text of each, by line: of modules, classes and functions, and those under attributes and constants."""
    functions: tuple[tuple[int, str, int], ...]
    """Line, name and number of lines of each function, by line."""
    imports: tuple[ast.Import | ast.ImportFrom, ...]
    """All of them, type checking and functions included."""


@cache
def outline(path: Path) -> Outline:
    """Return the outline of a file."""
    return outline_of(path.read_text(encoding="utf-8"))


def outline_of(source: str) -> Outline:
    """Return the outline of a source."""
    docstrings, functions = list[tuple[int, str]](), list[tuple[int, str, int]]()
    imports: list[ast.Import | ast.ImportFrom] = []
    for node in _statements(ast.parse(source)):
        match node:
            case ast.Expr(value=ast.Constant(value=str(text))):
                docstrings.append((node.lineno, text))
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                functions.append((node.lineno, node.name, (node.end_lineno or node.lineno) - node.lineno + 1))
            case ast.Import() | ast.ImportFrom():
                imports.append(node)
    return Outline(tuple(sorted(docstrings)), tuple(sorted(functions)), tuple(imports))


def _statements(tree: ast.Module) -> Iterator[ast.AST]:
    """Every statement, and what else holds statements; not the expressions, which are ten times as many."""
    ahead: list[ast.AST] = [tree]
    while ahead:
        node = ahead.pop()
        yield node
        for name in _HOLDS_STATEMENTS:
            inside = getattr(node, name, None)
            if isinstance(inside, list):
                ahead += inside
