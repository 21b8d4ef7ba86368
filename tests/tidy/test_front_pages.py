"""What a reader sees first: the README, also on a package index, where nothing is beside it; and the pages and scripts that it names."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
SCRIPTS = sorted(EXAMPLES.glob("*.py"))
PAGES = [ROOT / "CONTRIBUTING.md", ROOT / "SECURITY.md", EXAMPLES / "README.md"]
SCRIPT_LINES_MAX = 72
PUBLIC = {f"quiver_actors.{name}" for name in ("aio", "client", "errors", "flight", "forward", "spark", "transactions")}

_CODE = re.compile(r"^ *```.*?^ *```|`[^`\n]*`", re.MULTILINE | re.DOTALL)
_LINKS = (
    re.compile(r"\]\(\s*<?([^)\s>]+)"),
    re.compile(r"^ {0,3}\[[^\]]+\]:\s*<?([^\s>]+)", re.MULTILINE),
    re.compile(r"\b(?:href|src)\s*=\s*[\"']?([^\"'\s>]+)", re.IGNORECASE),
)
"""Links and pictures of Markdown, their definitions, and those of HTML."""
_PATH = re.compile(r"`((?:docs|examples|tests|benchmarks)/[\w./-]+|[A-Z]+\.md|LICENSE)`")


def links_of(text: str) -> list[str]:
    """Where the links of a page lead, those in code left out."""
    plain = _CODE.sub("", text)
    return [target for kind in _LINKS for target in kind.findall(plain)]


def test_links_of_every_kind_are_found() -> None:
    text = '[a](docs/a.md#b) ![b](b.png) [c]\n\n[c]: c.md\n<a href="d.md"><img src=e.png>\n`[no](f.md)`\n```sh\n[no](g.md)\n```\n'
    assert sorted(links_of(text)) == ["b.png", "c.md", "d.md", "docs/a.md#b", "e.png"]


def test_the_readme_has_no_relative_link() -> None:
    """A package index shows the README without the files beside it, and the place of the source is not known to it."""
    assert [target for target in links_of(readme()) if not target.startswith(("https://", "mailto:"))] == []


def test_what_the_readme_names_is_there() -> None:
    assert [path for path in _PATH.findall(readme()) if not (ROOT / path).exists()] == []


def test_the_readme_names_every_page() -> None:
    pages = {f"docs/{page.name}" for page in (ROOT / "docs").glob("*.md")} - {"docs/index.md"}
    assert pages <= set(_PATH.findall(readme()))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_between_pages_lead_somewhere(page: Path) -> None:
    for link in links_of(page.read_text()):
        target, _, heading = link.partition("#")
        assert (page.parent / target).exists(), link
        assert not heading or heading in headings_of(page.parent / target), link


def test_the_index_of_the_examples_lists_each_with_its_own_name() -> None:
    listed = re.findall(r"^\| \[([\w.]+)\]\(\1\) \|", (EXAMPLES / "README.md").read_text(), re.MULTILINE)
    assert sorted(listed) == [script.name for script in SCRIPTS]


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.stem)
def test_an_example_is_short_says_how_to_run_it_and_uses_what_is_public(script: Path) -> None:
    text = script.read_text()
    tree = ast.parse(text)
    assert f"    python examples/{script.name}" in (ast.get_docstring(tree, clean=False) or "")
    assert len(text.splitlines()) <= SCRIPT_LINES_MAX
    modules = {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.module}
    modules |= {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    assert {module for module in modules if module.startswith("quiver_actors.")} <= PUBLIC


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.stem)
def test_every_example_is_run(script: Path) -> None:
    assert f'"{script.name}"' in (ROOT / "tests" / "examples" / "test_examples.py").read_text()


def readme() -> str:
    return (ROOT / "README.md").read_text()


def headings_of(page: Path) -> set[str]:
    """The anchors of a page, as sites make them of its headings."""
    titles = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", title.lower()).strip().replace(" ", "-") for title in titles}
