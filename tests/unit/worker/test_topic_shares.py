"""Workers that keep to a topic's share of the cap among themselves, on a real counters page; engines exist in name only."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quiver_actors.config import RetentionSettings
from quiver_actors.disk.simulated import SimDisk
from quiver_actors.metrics.figures import RowKind, ShareFigure
from quiver_actors.shm.counters import CountersPage
from quiver_actors.shm.names import new_name
from quiver_actors.supervisor.figures import region_of
from quiver_actors.worker.neighbours import Neighbours
from quiver_actors.worker.topic_shares import TopicShare, TopicShares
from tests.support.engine_driver import EngineDriver, topic_settings

WORKERS = 3
LIMIT = 100


@pytest.fixture
def page() -> Iterator[CountersPage]:
    page = CountersPage.create(new_name(), region_of(WORKERS), 8)
    yield page
    page.unlink()
    page.close()


def share_on(page: CountersPage, worker: int) -> TopicShare:
    region = page.writer(region_of(worker))
    share = TopicShare(Neighbours(page, region), region, "clicks")
    share.limit_bytes = LIMIT
    return share


def said(page: CountersPage) -> int:
    rows = [row for region in page.read() for row in region.rows if row.kind == RowKind.SHARE]
    return sum(row.values[ShareFigure.USED_BYTES] for row in rows)


ACTS = st.lists(st.tuples(st.integers(0, WORKERS - 1), st.integers(-60, 60), st.booleans()), max_size=60)


@settings(max_examples=60, deadline=None)
@given(ACTS)
def test_no_order_of_takes_brings_a_topic_over_its_limit(acts: list[tuple[int, int, bool]]) -> None:
    page = CountersPage.create(new_name(), region_of(WORKERS), 8)
    try:
        shares = [share_on(page, worker) for worker in range(WORKERS)]
        used = [0] * WORKERS
        for now_ns, (worker, size, worker_admits) in enumerate(acts, 1):
            if size <= 0:
                used[worker] = max(0, used[worker] + size)
                continue
            free = LIMIT - sum(used)
            is_taken = shares[worker].take(used[worker], size, now_ns, lambda _, admits=worker_admits: admits)  # type: ignore[misc]
            used[worker] += size if is_taken else 0
            assert is_taken <= (size <= free and worker_admits)
            assert sum(used) <= LIMIT
    finally:
        page.unlink()
        page.close()


def test_of_two_that_reach_for_the_last_room_at_once_not_both_get_it(page: CountersPage) -> None:
    first, second = share_on(page, 0), share_on(page, 1)
    reached: list[bool] = []

    def meanwhile(_: int) -> bool:
        # The first has said what it takes, and has looked, and has not taken it yet.
        reached.append(second.take(0, 60, 2, lambda _: True))
        return True

    assert first.take(0, 60, 1, meanwhile)
    assert reached == [False]
    assert second.is_refused


def test_what_a_worker_does_not_give_leave_for_is_not_said_to_be_taken(page: CountersPage) -> None:
    share = share_on(page, 0)
    assert not share.take(10, 50, 1, lambda _: False)
    assert not share.is_refused, "the grant is in the way, not the limit"
    assert said(page) == 10


def test_a_worker_that_begins_anew_counts_with_what_it_said_before(page: CountersPage) -> None:
    dying, other = share_on(page, 0), share_on(page, 1)
    assert dying.take(0, 80, 1, lambda _: True)
    assert not other.take(0, 30, 2, lambda _: True)
    page.writer(region_of(0)).begin(1234, 0)
    assert not other.take(0, 30, 3, lambda _: True)
    back = share_on(page, 0)
    assert back.take(20, 10, 10**9, lambda _: True)
    assert other.take(0, 30, 2 * 10**9, lambda _: True)


def test_without_a_row_to_keep_to_it_with_a_topic_has_what_the_node_has() -> None:
    retention = RetentionSettings(cap_share=0.5)
    engine = EngineDriver(SimDisk(), topic_settings(retention=retention)).engine
    page = CountersPage.create(new_name(), region_of(1), 1)
    try:
        region = page.writer(region_of(0))
        region.row(RowKind.WORKER, "core_0")
        shares = TopicShares(page, region, {}, lambda: LIMIT)
        assert shares.admits(engine, 10 * LIMIT, 1, lambda _: True)
        assert not shares.admits(engine, 1, 1, lambda _: False)
    finally:
        page.unlink()
        page.close()
