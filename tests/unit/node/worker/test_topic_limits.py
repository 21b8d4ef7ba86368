"""A worker's topics with a limit where the counters page has no row for it: the node's cap holds all the same, and pushes go on."""

from __future__ import annotations

import pytest

from quiver_actors.base.config import RetentionSettings
from quiver_actors.node.worker.topic_limits import TopicLimits
from quiver_actors.node.worker.usage_totals import UsageTotals
from quiver_actors.shm.counters import CountersPage
from quiver_actors.shm.names import new_name
from quiver_actors.supervisor.figures import STORAGE_ROW, NodeStorageFigure, region_of
from tests.support.engine_driver import ManualClock, topic_settings
from tests.support.host_bench import HostBench, clocks_of

CAP = 1 << 20


@pytest.mark.parametrize(("rows", "is_kept_by_supervisor"), [(1, True), (2, False), (2, True)])
def test_only_a_topic_with_rows_on_both_sides_waits_for_a_quota(
    monkeypatch: pytest.MonkeyPatch, rows: int, is_kept_by_supervisor: bool
) -> None:
    clock = ManualClock()
    clocks_of(clock, monkeypatch)
    bench = HostBench(clock, topic_settings(retention=RetentionSettings(cap_share=0.5)))
    page = CountersPage.create(new_name(), region_of(1), rows)
    sums = {NodeStorageFigure.CAP_BYTES: CAP, NodeStorageFigure.HAS_UNKEPT_TOPICS: int(not is_kept_by_supervisor)}
    try:
        region, hosts = page.writer(region_of(0)), {"default": bench.host}
        row, usage = region.row(STORAGE_ROW, "core_0"), UsageTotals(hosts, bench.run_queue)
        limits = TopicLimits(page, region, row, "core_0", hosts, lambda figure: sums.get(figure, 0), lambda: None)
        assert not limits.admits(bench.host.engine, 1), "the topic has no account yet"
        limits.turn(clock.now_ns, usage.look(), usage)
        has_no_limit = rows == 1 or not is_kept_by_supervisor
        assert limits.admits(bench.host.engine, CAP) == has_no_limit
    finally:
        bench.close()
        page.unlink()
        page.close()
