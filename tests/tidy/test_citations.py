"""What code and pages cite is in the repository: each page, and each section by its number and title."""

from __future__ import annotations

import re
from collections.abc import Iterator

from tests.tidy.outlines import outline
from tests.tidy.test_layers import ROOT
from tests.tidy.test_sentences import files

_PAGE = re.compile(r"\bdocs/[\w-]+\.md\b")
_SECTION = re.compile(r'\bsection (\d+(?:\.\d+)*), "([^"]+)"')
_TITLE_ALONE = re.compile(r'\b(docs/[\w-]+\.md), "([^"]+)"')
_HEADING = re.compile(r"^#{2,} (?:(\d+(?:\.\d+)*)\.? )?(.+)$", re.MULTILINE)
_ELSEWHERE = re.compile(r"\b(?:DESIGN|FORMATS|NOTES|HANDOVER|ROADMAP)\.md\b")
"""Matches names of texts that are not in the repository."""


def sections(page: str) -> dict[str, str]:
    """Title of each heading of a page below its first, by number; headings without a number under their own title."""
    text = (ROOT / page).read_text(encoding="utf-8")
    return {number or title: title for number, title in _HEADING.findall(text)}


def citations(text: str) -> Iterator[str]:
    """List the faults in the citations of a docstring: a page alone, a page with a section's number and title, or with a title."""
    flat = " ".join(text.split())
    pages = _PAGE.findall(flat)
    yield from (f"{page} is not there" for page in pages if not (ROOT / page).exists())
    for page, title in _TITLE_ALONE.findall(flat):
        if sections(page).get(title) != title:
            yield f"{page} has no section {title!r} without a number"
    for number, title in _SECTION.findall(flat):
        if not any(sections(page).get(number) == title for page in pages):
            yield f"no cited page has a section {number} {title!r}"
    yield from (f"{name} is not in the repository" for name in _ELSEWHERE.findall(flat))


def test_what_a_docstring_cites_is_there() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{line}: {wrong}"
        for path in files()
        for line, text in outline(path).docstrings
        for wrong in citations(text)
    ]
    assert found == []


def test_the_sections_of_the_format_page_are_numbered_without_a_gap() -> None:
    text = (ROOT / "docs" / "formats.md").read_text(encoding="utf-8")
    expected, chapter, section = [], 0, 0
    for marks in re.findall(r"^(##+) ", text, re.MULTILINE):
        chapter, section = (chapter + 1, 0) if marks == "##" else (chapter, section + 1)
        expected.append(f"{chapter}.{section}" if section else f"{chapter}")
    assert [number for number, _ in _HEADING.findall(text)] == expected


def test_wrong_citations_are_found() -> None:
    assert list(citations("See docs/nothing.md and the FORMATS.md.")) == [
        "docs/nothing.md is not there",
        "FORMATS.md is not in the repository",
    ]
    assert list(citations('docs/formats.md, "Numbers"')) == [
        "docs/formats.md has no section 'Numbers' without a number"
    ]
    assert list(citations('docs/formats.md section 4, "Numbers"')) == ["no cited page has a section 4 'Numbers'"]
    assert (
        list(citations('Source: docs/formats.md section 5,\n    "Numbers". See docs/concepts.md, "Durability".')) == []
    )
