"""What a worker's engines have and want, added up from what has moved: always what adding everything up anew would say."""

from __future__ import annotations

import pytest

from quiver_actors.config import RetentionSettings
from quiver_actors.units import SECOND_NS
from quiver_actors.worker.evictions import Candidates
from quiver_actors.worker.host import EngineHost
from quiver_actors.worker.reckoning import Reckoning
from tests.support.engine_driver import ManualClock, topic_settings
from tests.support.host_bench import HostBench, clocks_of


def reckoned(reckoning: Reckoning) -> tuple[int, int, int]:
    return reckoning.used_bytes, reckoning.wanted_bytes(), reckoning.doomed_bytes


def store(bench: HostBench, number: int) -> None:
    """A sealed segment of one bundle."""
    bench.push(number)
    bench.run_for(SECOND_NS)
    bench.seal()
    bench.run_for(SECOND_NS)


def added_up(hosts: dict[str, EngineHost]) -> tuple[int, int, int]:
    engines = [host.engine for host in hosts.values()]
    return (
        sum(engine.disk_bytes for engine in engines),
        sum(engine.wanted_bytes for engine in engines),
        sum(engine.retention.doomed_bytes for engine in engines),
    )


def test_sums_follow_pushes_seals_and_hosts_that_come_and_go(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = ManualClock()
    clocks_of(clock, monkeypatch)
    benches = [HostBench(clock, topic_settings()) for _ in range(3)]
    agenda = benches[0].agenda
    for bench in benches[1:]:
        monkeypatch.setattr(bench.host, "_agenda", agenda)
    hosts = {"a": benches[0].host, "b": benches[1].host}
    reckoning = Reckoning(hosts, agenda)
    try:
        assert reckoning.look() == set(hosts.values())
        assert reckoned(reckoning) == added_up(hosts)
        assert reckoning.look() == set(), "nothing has moved"
        benches[0].push(1)
        assert reckoning.used_bytes == added_up(hosts)[0], "also in the middle of a turn"
        benches[0].settle()
        assert reckoning.look() == {benches[0].host}
        assert reckoning.taking == {benches[0].host}
        benches[0].seal()
        benches[0].run_for(SECOND_NS)
        reckoning.look()
        assert reckoned(reckoning) == added_up(hosts)
        assert reckoning.taking == set()
        comings = reckoning.comings
        hosts["c"] = benches[2].host
        del hosts["b"]
        benches[2].host.touch()
        assert benches[1].host not in reckoning.look()
        assert reckoning.comings > comings
        assert reckoned(reckoning) == added_up(hosts)
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
