"""The sums that are kept are the sums."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from quiver_actors.base.protocol.messages import SegmentInfo
from quiver_actors.store.engine.segment_table import SegmentTable
from quiver_actors.store.retention.account import block_bytes

_NUMBERS = st.integers(0, 5)
_CHANGES = st.lists(
    st.tuples(st.sampled_from(["set", "delete", "pop"]), _NUMBERS, st.integers(1, 1 << 40), st.integers(0, 99))
)


def info(segment_seq: int, size_bytes: int, bundle_count: int) -> SegmentInfo:
    return SegmentInfo(segment_seq, bundle_count, 7 * bundle_count, size_bytes, 0, 0)


@given(st.dictionaries(_NUMBERS, st.integers(1, 1 << 40)), _CHANGES)
def test_sums_follow_every_change(begun: dict[int, int], changes: list[tuple[str, int, int, int]]) -> None:
    plain = {number: info(number, size, 3) for number, size in begun.items()}
    table = SegmentTable(plain)
    assert begun.keys() == plain.keys(), "the caller's own stays as it is"
    for what, number, size, bundles in changes:
        if what == "set":
            table[number] = plain[number] = info(number, size, bundles)
        elif what == "pop":
            nothing = info(number, 1, 1)
            assert table.pop(number, nothing) == plain.pop(number, nothing)
        elif number in plain:
            del table[number], plain[number]
        assert table == plain
        assert table.size_bytes == sum(found.size_bytes for found in plain.values())
        assert table.block_bytes == sum(block_bytes(found.size_bytes) for found in plain.values())
        assert table.bundle_count == sum(found.bundle_count for found in plain.values())
        assert table.row_count == sum(found.row_count for found in plain.values())
