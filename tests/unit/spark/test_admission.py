"""How much one micro-batch takes: everything in the end, never much more than the limit, at least one bundle."""

from __future__ import annotations

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from quiver_actors.base.protocol.messages import SegmentInfo
from quiver_actors.flight.contract import CoreContents, Weights
from quiver_actors.spark import offsets
from quiver_actors.spark.admission import Budget, Weigher, admitted
from quiver_actors.spark.offsets import Place
from quiver_actors.spark.reader import head_of

Stored = dict[Place, dict[int, list[int]]]
"""Rows of each bundle, by place and segment; a row takes 8 bytes."""

stored = st.dictionaries(
    st.builds(Place, st.sampled_from("ab"), st.integers(0, 1)),
    st.dictionaries(st.integers(0, 30), st.lists(st.integers(0, 50), min_size=1, max_size=6), max_size=4),
    min_size=1,
)


class KnownWeights(Weigher):
    """Weights of bundles that exist only here."""

    def __init__(self, contents: Stored) -> None:
        self._contents = contents
        self.of_segment = self._look  # type: ignore[method-assign]

    def _look(self, place: Place, info: SegmentInfo) -> Weights:
        rows = self._contents[place][info.segment_seq]
        return Weights(rows, [8 * count for count in rows], [0] * len(rows))


def contents_of(contents: Stored, *, is_last_open: bool = False) -> dict[Place, CoreContents]:
    """What nodes have; with `is_last_open` the last segment of each worker is not sealed."""
    found = {}
    for place, segments in contents.items():
        infos = [SegmentInfo(seq, len(rows), sum(rows), 8 * sum(rows), 0, 0) for seq, rows in sorted(segments.items())]
        unsealed = [msgspec.structs.replace(info, row_count=-1) for info in infos[-1:]] if is_last_open else []
        found[place] = CoreContents(place.core, infos[: len(infos) - len(unsealed)], unsealed=unsealed)
    return found


def rows_between(contents: Stored, start: dict[Place, int], end: dict[Place, int]) -> list[int]:
    return [
        rows
        for place, segments in contents.items()
        for seq, bundles in segments.items()
        for index, rows in enumerate(bundles)
        if start.get(place, 0) <= offsets.position(seq, index) < end[place]
    ]


@given(stored, st.integers(1, 60), st.booleans(), st.booleans())
def test_turn_by_turn_everything_is_taken_once(
    contents: Stored, limit: int, in_bytes: bool, is_last_open: bool
) -> None:
    cores = contents_of(contents, is_last_open=is_last_open)
    heads = {place: head_of(core) for place, core in cores.items()}
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


A = Place("a", 0)


def test_nothing_behind_the_head_is_taken_though_its_segment_has_grown() -> None:
    """Trigger.AvailableNow ends where an open segment ended when it began."""
    contents: Stored = {A: {4: [1] * 6}}
    for is_last_open in (False, True):
        cores = contents_of(contents, is_last_open=is_last_open)
        head = {A: offsets.position(4, 3)}
        for budget in (Budget(100, None), Budget(2, None)):
            end = admitted(cores, {A: offsets.position(4, 1)}, head, budget, KnownWeights(contents))
            assert end == head


def test_a_segment_that_was_sealed_behind_the_last_bundle_that_was_read_has_nothing_new() -> None:
    contents: Stored = {A: {4: [1, 1]}}
    at = {A: offsets.position(4, 2)}
    assert admitted(contents_of(contents), at, at, Budget(1, None), KnownWeights(contents)) == at
