"""For the site only: what the pages write in plain Markdown, in the words of the program that makes the site."""

from __future__ import annotations

import re
from typing import Any

_FENCE_MODE = re.compile(r"^([ ]*```[a-z]+) [a-z]+$", re.MULTILINE)
_LIST_BEHIND_TEXT = re.compile(r"^(?!\s*(?:[-#|>]|\d+\.|```|$))(.+)\n(?=(?:-|1\.) )", re.MULTILINE)
_FENCED = re.compile(r"(^[ ]*```.*?^[ ]*```[ ]*$)", re.MULTILINE | re.DOTALL)


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Without the modes of code blocks (tests/docs/pages.py), and with an empty line between a text and its list."""
    parts = _FENCED.split(_FENCE_MODE.sub(r"\1", markdown))
    return "".join(part if number % 2 else _LIST_BEHIND_TEXT.sub(r"\1\n\n", part) for number, part in enumerate(parts))
