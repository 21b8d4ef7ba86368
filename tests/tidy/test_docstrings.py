"""Every public class, function, method and module of the product has a docstring."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from pathlib import Path

from tests.tidy.test_layers import ROOT
from tests.tidy.test_sentences import files

ROOMS = ("quiver_actors", "shm", "supervisor")

_Named = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


def is_exempt(node: _Named) -> bool:
    """Whether the name is private, or its meaning is that of another one: overloads, setters, deleters, special methods."""
    decorators = [ast.unparse(each) for each in node.decorator_list]
    return node.name.startswith("_") or any(
        each.endswith((".setter", ".deleter")) or each.rpartition(".")[2] == "overload" for each in decorators
    )


def undocumented(body: Sequence[ast.stmt], prefix: str = "") -> Iterator[tuple[int, str]]:
    """Line and qualified name of each public class, function or method without a docstring."""
    for node in body:
        if isinstance(node, ast.If | ast.Try):
            yield from undocumented([*node.body, *node.orelse], prefix)
        elif isinstance(node, _Named) and not is_exempt(node):
            if ast.get_docstring(node) is None:
                yield node.lineno, f"{prefix}{node.name}"
            if isinstance(node, ast.ClassDef):
                yield from undocumented(node.body, f"{prefix}{node.name}.")


def product() -> Iterator[tuple[str, Path]]:
    """Path from the root of the repository, and file, of each module of the product."""
    for path in files():
        name = str(path.relative_to(ROOT))
        if name.startswith(ROOMS):
            yield name, path


def test_every_public_name_has_a_docstring() -> None:
    found = []
    for name, path in product():
        tree = ast.parse(path.read_text(encoding="utf-8"))
        if ast.get_docstring(tree) is None:
            found.append(f"{name}:1: the module")
        found += [f"{name}:{line}: {what}" for line, what in undocumented(tree.body)]
    assert not found, f"{len(found)} public names have no docstring:\n" + "\n".join(found)


def test_names_without_a_docstring_are_found() -> None:
    source = '''
class Store:
    """Text."""

    @property
    def size(self): ...
    @size.setter
    def size(self, value): ...
    @overload
    def read(self): ...
    def read(self): "Text."
    def _hidden(self): ...
    def __len__(self): ...
    class Inner: ...
try:
    async def run(): ...
finally:
    pass
def _helper():
    def inner(): ...
'''
    assert [name for _, name in undocumented(ast.parse(source).body)] == ["Store.size", "Store.Inner", "run"]
