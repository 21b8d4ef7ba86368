"""Files, classes and functions stay small, and nobody reaches into another object's private names.

Mixins are no way around it: a part is cut by concept, with an owner and a name.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
FILE_LINES_MAX = 400
METHODS_MAX = 25
ATTRIBUTES_MAX = 20
BRANCHES_MAX = 10

HELD = (
    "quiver_actors/client/",
    "quiver_actors/aio/",
    "quiver_actors/embedded/",
    "quiver_actors/forward/",
    "quiver_actors/flight/",
    "quiver_actors/node/",
    "shm/",
    "supervisor/",
)
"""Rooms that keep the limits: nothing in them may be exempt but the public façades."""
FACADES = {"quiver_actors/aio/client.py Client"}
"""One method for each thing that a user may ask for."""
RECORDS = {
    "quiver_actors/archive/manifest.py Segment",
    "quiver_actors/store/status/status_document.py EngineView",
    "quiver_actors/store/status/status_document.py SubscriberView",
    "quiver_actors/spark/options.py SourceOptions",
    "quiver_actors/store/engine/engine_figures.py EngineFigures",
}
"""Values with a field for each figure or option, and no method."""
TOO_LARGE: set[str] = set()
"""What other rooms still have above a limit. The table only shrinks."""

LONG_FILES: set[str] = set()
"""Files of tests and benchmarks that are still longer than the limit. The table only shrinks."""

RECORD_NAMES = ("_replace", "_asdict", "_fields", "_make")
"""Public names of every NamedTuple."""
NAMELESS = (
    "os._exit",
    "argparse._SubParsersAction",
    "argparse._ActionsContainer",
    "argparse._HelpAction",
    "sys._getframe",
)
"""What the standard library documents under these names only, or has no other name for."""
REACHES: set[str] = {
    "quiver_actors/cli/examples.py parser._actions",
    "quiver_actors/cli/reference.py parser._actions",
    "quiver_actors/spark/locality.py context._jsc",
    "quiver_actors/spark/locality.py context._jvm",
    "quiver_actors/spark/session.py spark._jsparkSession",
}
"""Reaches into private names that other rooms still have. The table only shrinks."""

Function = ast.FunctionDef | ast.AsyncFunctionDef
BRANCHES = (ast.If, ast.For, ast.While, ast.ExceptHandler, ast.match_case)


@cache
def sources() -> dict[str, str]:
    """The product's files, by their path in the repository."""
    found = {}
    for top in ("quiver_actors", "shm", "supervisor", "pyspark_quiver"):
        for path in sorted((ROOT / top).rglob("*.py")):
            relative = path.relative_to(ROOT)
            is_linked = top == "quiver_actors" and relative.parts[1] in ("shm", "supervisor")
            if not is_linked:
                found[str(relative)] = path.read_text()
    return found


def too_large(path: str, source: str) -> Iterator[str]:
    """Names of what is above a limit in a file, and of the file itself."""
    if source.count("\n") > FILE_LINES_MAX:
        yield path
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ClassDef):
            methods = [each for each in node.body if isinstance(each, Function)]
            if len(methods) > METHODS_MAX or len(attributes_of(node)) > ATTRIBUTES_MAX:
                yield f"{path} {node.name}"
        elif isinstance(node, Function) and sum(isinstance(each, BRANCHES) for each in inside(node)) > BRANCHES_MAX:
            yield f"{path} {node.name}"


def attributes_of(node: ast.ClassDef) -> set[str]:
    """What a class assigns on itself, and the fields that it declares."""
    fields = {
        each.target.id for each in node.body if isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name)
    }
    stored = {
        each.attr
        for each in ast.walk(node)
        if isinstance(each, ast.Attribute) and isinstance(each.ctx, ast.Store) and ast.unparse(each.value) == "self"
    }
    return fields | stored


def inside(node: ast.AST) -> Iterator[ast.AST]:
    """What belongs to a function itself, not to functions and classes in it."""
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, Function | ast.Lambda | ast.ClassDef):
            yield child
            yield from inside(child)


def reaches(path: str, source: str) -> Iterator[str]:
    """Private names of other objects that a file uses."""
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Attribute) or not node.attr.startswith("_") or node.attr.startswith("__"):
            continue
        text = ast.unparse(node)
        is_own = ast.unparse(node.value) in ("self", "cls", "super()")
        if not is_own and node.attr not in RECORD_NAMES and text not in NAMELESS:
            yield f"{path} {text}"


def test_files_classes_and_functions_are_small() -> None:
    found = {each for path, source in sources().items() for each in too_large(path, source)}
    assert found - FACADES - RECORDS - TOO_LARGE == set()
    assert (FACADES | RECORDS | TOO_LARGE) - found == set(), "these keep the limits now: take them out of the tables"


def test_files_of_tests_benchmarks_and_examples_are_short() -> None:
    paths = [path for top in ("tests", "benchmarks", "examples") for path in sorted((ROOT / top).rglob("*.py"))]
    assert len(paths) > 400
    found = {str(path.relative_to(ROOT)) for path in paths if path.read_text().count("\n") > FILE_LINES_MAX}
    assert found - LONG_FILES == set()
    assert LONG_FILES - found == set(), "these keep the limit now: take them out of the table"


def test_nobody_reaches_into_private_names_of_others() -> None:
    found = {each for path, source in sources().items() for each in reaches(path, source)}
    assert found - REACHES == set()
    assert REACHES - found == set(), "these are gone: take them out of the table"


def test_rooms_that_keep_the_limits_keep_them() -> None:
    assert [each for each in sorted(TOO_LARGE | RECORDS | REACHES) if each.startswith(HELD)] == []


def test_what_is_too_large_is_found() -> None:
    methods = "\n".join(f"    def m{number}(self): self.a{number} = 1" for number in range(21))
    branches = "\n".join("    if a: pass" for _ in range(BRANCHES_MAX + 1))
    assert list(too_large("f.py", f"class Wide:\n{methods}\n")) == ["f.py Wide"]
    assert list(too_large("f.py", f"def winding(a):\n{branches}\n")) == ["f.py winding"]
    assert list(too_large("f.py", "\n" * (FILE_LINES_MAX + 1))) == ["f.py"]
    assert list(too_large("f.py", "class Few:\n    a: int\n    def m(self): self.b = self.a\n")) == []


def test_a_reach_is_found() -> None:
    source = "class A:\n    def m(self, other): self._own = other._private; super()._base(); other._replace(a=1)\n"
    assert list(reaches("f.py", source)) == ["f.py other._private"]
