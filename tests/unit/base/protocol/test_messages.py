"""The table of tags in the docstring of `base.protocol.messages` is the protocol's."""

from __future__ import annotations

import re
from collections import defaultdict
from typing import Any, get_args

import pytest

from quiver_actors.base.protocol import messages

ROW = re.compile(r"^ {4}(\w*messages) {2,}(\S[\d, -]*?) {2,}(\S[\d, -]*?) {2,}", re.MULTILINE)


def numbers(text: str) -> set[int]:
    """`2-5, 41`: 2, 3, 4, 5 and 41."""
    ranges = [part.split("-") for part in text.split(", ")]
    return {number for ends in ranges for number in range(int(ends[0]), int(ends[-1]) + 1)}


@pytest.mark.parametrize(("union", "column"), [(messages.ClientMessage, 2), (messages.WorkerMessage, 3)])
def test_the_table_names_the_tags_of_every_module(union: Any, column: int) -> None:
    found: dict[str, set[int]] = defaultdict(set)
    for kind in get_args(union):
        tag = kind.__struct_config__.tag
        assert tag not in found[kind.__module__]
        found[kind.__module__].add(tag)
    listed = {
        f"quiver_actors.base.protocol.{row[1]}": numbers(row[column]) for row in ROW.finditer(messages.__doc__ or "")
    }
    assert listed == found
