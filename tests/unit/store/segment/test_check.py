"""Checking a whole file: what is missing of it is told from what is damaged."""

from __future__ import annotations

import pytest

from quiver_actors.errors import Truncated
from quiver_actors.store.segment.check import STEP_BYTES, checksum_steps, run_to_end, verify_steps
from quiver_actors.store.segment.layout import TRAILER
from tests.unit.store.wal.logs import reader_of


@pytest.mark.parametrize("size", [0, 100, STEP_BYTES, STEP_BYTES + 1])
def test_a_file_that_is_shorter_than_it_was_is_truncated(size: int) -> None:
    with pytest.raises(Truncated, match=f"the file ends at {size}: expected {size + 7}"):
        run_to_end(checksum_steps(reader_of(bytes(size)), size + 7))


def test_a_file_without_room_for_a_trailer_is_truncated() -> None:
    with pytest.raises(Truncated, match="segment has 15 bytes: expected at least the 16 of its trailer"):
        run_to_end(verify_steps(reader_of(bytes(TRAILER.size - 1)), TRAILER.size - 1))
