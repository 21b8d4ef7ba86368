"""Every page of docs/ is a page of the site: in its navigation (mkdocs.yml) and on its front page."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = {page.name for page in (ROOT / "docs").glob("*.md")}


def test_every_page_is_in_the_navigation_of_the_site() -> None:
    listed = re.findall(r"^ +- (\w[\w-]*\.md)$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE)
    assert sorted(listed) == sorted(PAGES), "mkdocs.yml"


def test_every_page_is_linked_from_the_front_page() -> None:
    linked = set(re.findall(r"\]\((\w[\w-]*\.md)\)", (ROOT / "docs" / "index.md").read_text()))
    assert linked == PAGES - {"index.md"}, "docs/index.md"
