"""A disk image taken when the power goes has everything that was acknowledged."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from tests.crash.recorded_disk import PAGE_BYTES, Platter
from tests.crash.test_kills import tally_of


@pytest.mark.crash
@pytest.mark.timeout(600)
def test_a_node_finds_what_was_acknowledged_on_an_image_of_a_power_cut() -> None:
    tally = tally_of("tests.crash.images", 1, 1, "ext4")
    assert tally["failures"] == []
    if reason := tally["skipped"].get("ext4"):
        pytest.skip(f"ext4: {reason}")
    assert tally["images"] == {"ext4": 1}
    assert tally["delivered"] >= tally["acknowledged"] > 0


def test_an_image_has_all_that_was_flushed_and_any_pages_of_the_rest(tmp_path: Path) -> None:
    image, crashed = tmp_path / "image", tmp_path / "crashed"
    with image.open("wb") as file:
        file.truncate(64 * PAGE_BYTES)
    platter = Platter(image)
    platter.write(b"a" * 4 * PAGE_BYTES, 0)
    platter.flush()
    platter.write(b"b" * 4 * PAGE_BYTES, 2 * PAGE_BYTES)
    seen = set()
    for seed in range(40):
        lost = platter.crash(str(crashed), Random(seed))
        content = crashed.read_bytes()
        pages = [content[at : at + PAGE_BYTES] for at in range(0, 8 * PAGE_BYTES, PAGE_BYTES)]
        assert all(page == page[:1] * PAGE_BYTES for page in pages)
        seen.add(b"".join(page[:1] for page in pages))
        assert lost == 4 - sum(page[:1] == b"b" for page in pages)
        assert platter.read(6 * PAGE_BYTES, 0) == b"a" * 2 * PAGE_BYTES + b"b" * 4 * PAGE_BYTES
    platter.close()
    assert {b"aaaa\0\0\0\0", b"aabbbb\0\0"} < seen
    assert len(seen) > 4
    assert all(
        state.startswith(b"aa") and set(state[2:4]) <= set(b"ab") and set(state[4:6]) <= set(b"\0b") for state in seen
    )
