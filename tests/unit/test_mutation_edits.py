"""The known-bad edits of the mutation check still fit the source: else it would check less than it says."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.mutation.edit import Edit
from tests.mutation.edits import EDITS

ROOT = Path(__file__).parents[2]


def test_there_are_enough_of_them() -> None:
    assert len(EDITS) >= 40
    assert len({edit.name for edit in EDITS}) == len(EDITS)


@pytest.mark.parametrize("edit", EDITS, ids=lambda edit: edit.name)
def test_each_fits_in_one_place_and_changes_something(edit: Edit) -> None:
    assert (ROOT / edit.file).read_text(encoding="utf-8").count(edit.old) == 1
    assert edit.old != edit.new
    compile((ROOT / edit.file).read_text(encoding="utf-8").replace(edit.old, edit.new), edit.file, "exec")
