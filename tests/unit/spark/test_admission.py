"""How much one micro-batch takes: everything in the end, never much more than the limit, at least one bundle."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from quiver_actors.flight.contract import CoreContents, Weights
from quiver_actors.protocol.messages import SegmentInfo
from quiver_actors.spark import offsets
from quiver_actors.spark.admission import Budget, Weigher, admitted
from quiver_actors.spark.offsets import Place

Stored = dict[Place, dict[int, list[int]]]
"""Rows of each bundle, by place and segment; a row takes 8 bytes."""

stored = st.dictionaries(
    st.builds(Place, st.sampled_from("ab"), st.integers(0, 1)),
    st.dictionaries(st.integers(0, 30), st.lists(st.integers(0, 50), min_size=1, max_size=6), max_size=4),
    min_size=1,
)


class KnownWeights(Weigher):
    """Of bundles that exist only here."""

    def __init__(self, contents: Stored) -> None:
        self._contents = contents
        self.of_segment = self._look  # type: ignore[assignment]

    def _look(self, place: Place, segment_seq: int) -> Weights:
        rows = self._contents[place][segment_seq]
        return Weights(rows, [8 * count for count in rows], [0] * len(rows))


def contents_of(contents: Stored) -> dict[Place, CoreContents]:
    return {
        place: CoreContents(
            place.core,
            [SegmentInfo(seq, len(rows), sum(rows), 8 * sum(rows), 0, 0) for seq, rows in sorted(segments.items())],
        )
        for place, segments in contents.items()
    }


def rows_between(contents: Stored, start: dict[Place, int], end: dict[Place, int]) -> list[int]:
    return [
        rows
        for place, segments in contents.items()
        for seq, bundles in segments.items()
        for index, rows in enumerate(bundles)
        if start.get(place, 0) <= offsets.position(seq, index) < end[place]
    ]


@given(stored, st.integers(1, 60), st.booleans())
def test_turn_by_turn_everything_is_taken_once(contents: Stored, limit: int, in_bytes: bool) -> None:
    cores = contents_of(contents)
    heads = {
        place: max((offsets.position(seq + 1, 0) for seq in segments), default=0)
        for place, segments in contents.items()
    }
    at = dict.fromkeys(cores, 0)
    taken: list[int] = []
    for _ in range(1000):
        budget = Budget(None, 8 * limit) if in_bytes else Budget(limit, None)
        end = admitted(cores, at, heads, budget, KnownWeights(contents))
        assert all(end[place] >= at[place] for place in at)
        if end == at:
            break
        found = rows_between(contents, at, end)
        assert len([rows for rows in found if rows]) <= 1 or sum(found) <= limit
        taken += found
        at = end
    assert at == heads
    assert sorted(taken) == sorted(
        rows for segments in contents.values() for bundles in segments.values() for rows in bundles
    )
