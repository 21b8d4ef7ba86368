"""The pages build as a site without a warning; nothing in it is fetched from elsewhere, and no block or list is lost on the way."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.pages import ROOT, blocks_of

pytest.importorskip("mkdocs")
_ITEM = re.compile(r"^ *(?:-|\d+\.) ", re.MULTILINE)
_FENCED = re.compile(r"^ *```.*?^ *```", re.MULTILINE | re.DOTALL)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(target)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=100, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    return target


def content(page: Path) -> str:
    """What the page itself says, without what is around it."""
    text = page.read_text(encoding="utf-8")
    return text.partition('itemprop="articleBody"')[2].partition("<footer")[0]


@pytest.mark.parametrize("page", sorted((ROOT / "docs").glob("*.md")), ids=lambda page: page.stem)
def test_a_page_of_the_site_has_all_that_its_source_has(site: Path, page: Path) -> None:
    made = content(site / f"{page.stem}.html")
    assert "```" not in made
    assert made.count("<pre>") >= len(list(blocks_of(page)))
    items = len(_ITEM.findall(_FENCED.sub("", page.read_text(encoding="utf-8"))))
    assert made.count("<li>") == items


def test_nothing_is_fetched_from_elsewhere(site: Path) -> None:
    fetched = re.compile(r'(?:<script[^>]*src|<link[^>]*href|<img[^>]*src)="(?:https?:)?//')
    assert [page.name for page in site.glob("*.html") if fetched.search(page.read_text(encoding="utf-8"))] == []
