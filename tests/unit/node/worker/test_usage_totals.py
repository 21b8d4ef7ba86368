"""What a worker's engines have and want, added up from what has moved: always what adding everything up anew would say."""

from __future__ import annotations

import pytest

from quiver_actors.base.config import RetentionSettings
from quiver_actors.base.units import SECOND_NS
from quiver_actors.node.worker.evictions import Candidates
from quiver_actors.node.worker.host import EngineHost
from quiver_actors.node.worker.usage_totals import UsageTotals
from tests.support.engine_driver import ManualClock, topic_settings
from tests.support.host_bench import HostBench, clocks_of


def computed(usage: UsageTotals) -> tuple[int, int, int]:
    found = usage.usage()
    return usage.used_bytes, found.wanted_bytes, found.doomed_bytes


def store(bench: HostBench, number: int) -> None:
    """A sealed segment of one bundle."""
    bench.push(number)
    bench.run_for(SECOND_NS)
    bench.seal()
    bench.run_for(SECOND_NS)


def added_up(hosts: dict[str, EngineHost]) -> tuple[int, int, int]:
    engines = [host.engine for host in hosts.values()]
    return (
        sum(engine.storage.disk_bytes for engine in engines),
        sum(engine.storage.wanted_bytes for engine in engines),
        sum(engine.retention.doomed_bytes for engine in engines),
    )


def test_sums_follow_pushes_seals_and_hosts_that_come_and_go(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = ManualClock()
    clocks_of(clock, monkeypatch)
    benches = [HostBench(clock, topic_settings()) for _ in range(3)]
    run_queue = benches[0].run_queue
    for bench in benches[1:]:
        monkeypatch.setattr(bench.host, "_run_queue", run_queue)
    hosts = {"a": benches[0].host, "b": benches[1].host}
    usage = UsageTotals(hosts, run_queue)
    try:
        assert usage.look() == set(hosts.values())
        assert computed(usage) == added_up(hosts)
        assert usage.look() == set(), "nothing has moved"
        benches[0].push(1)
        assert usage.used_bytes == added_up(hosts)[0], "also in the middle of a turn"
        benches[0].settle()
        assert usage.look() == {benches[0].host}
        assert usage.taking == {benches[0].host}
        benches[0].seal()
        benches[0].run_for(SECOND_NS)
        usage.look()
        assert computed(usage) == added_up(hosts)
        assert usage.taking == set()
        comings = usage.comings
        hosts["c"] = benches[2].host
        del hosts["b"]
        benches[2].host.touch()
        assert benches[1].host not in usage.look()
        assert usage.comings > comings
        assert computed(usage) == added_up(hosts)
    finally:
        for bench in benches:
            bench.close()


def test_what_could_go_is_asked_again_of_those_that_something_has_happened_to(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = ManualClock()
    clocks_of(clock, monkeypatch)
    settings = topic_settings(retention=RetentionSettings(size_cap_policy="drop_oldest"))
    benches = [HostBench(clock, settings) for _ in range(2)]
    hosts = {"a": benches[0].host, "b": benches[1].host}
    candidates = Candidates(hosts)
    try:
        for number, bench in enumerate(benches):
            bench.subscribe(credit=0)
            store(bench, number)
        assert {each.topic for each in candidates.look(1)} == {"a", "b"}
        store(benches[0], 7)
        assert len(candidates.look(SECOND_NS)) == 2, "nobody has said that something has happened"
        candidates.note([benches[0].host])
        assert [each.topic for each in sorted(candidates.look(3 * SECOND_NS))].count("a") == 2
        del hosts["a"]
        assert {each.topic for each in candidates.look(5 * SECOND_NS)} == {"b"}
        assert candidates.first is not None
        assert candidates.first.topic == "b"
        candidates.look_no_more()
        assert candidates.first is None
    finally:
        for bench in benches:
            bench.close()
