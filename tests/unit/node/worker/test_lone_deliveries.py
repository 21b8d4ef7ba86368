"""The bundle of a lone push and the consumer that waits for it: delivered with the commit, and everything else as on the general way."""

from __future__ import annotations

import random
from array import array

import msgspec
import pytest

from quiver_actors.base.protocol import messages as m
from quiver_actors.base.units import MILLISECOND_NS, SECOND_NS
from tests.support.engine_driver import ManualClock, topic_settings
from tests.support.host_bench import HostBench, clocks_of

_SEEDS = 12
_STEPS = 80
_LEASE_NS = 100 * MILLISECOND_NS
TERMS = (
    m.Terms(),
    m.Terms(lease_ns=_LEASE_NS),
    m.Terms(lease_ns=0, max_deliveries=2, exhausted="block"),
    m.Terms(max_in_flight_bundles=3),
    m.Terms(max_in_flight_bytes=2000),
    m.Terms(order="newest"),
)


def kinds(found: list[m.Message]) -> list[type[m.Message]]:
    return [type(message) for message in found]


def follow(bench: HostBench, terms: m.Terms | None = None, bundles: int = 6) -> None:
    """Subscribe, and get bundles by the general way until the subscriber is known to wait for more."""
    bench.subscribe(terms=terms)
    for number in range(1, bundles):
        bench.push(number)
        bench.settle()
    bench.received()


def test_the_consumer_has_the_bundle_with_the_commit_and_the_producer_its_answer_before(bench: HostBench) -> None:
    follow(bench)
    assert bench.push_alone(10)
    bench.commit()
    acked, deliver = bench.received()
    assert isinstance(acked, m.Acked)
    assert isinstance(deliver, m.Deliver)
    assert array("I", deliver.bundle_indexes).tolist() == [acked.runs[0].bundle_index] == [6]
    assert not bench.host.is_touched, "no turn is needed for it"
    bench.run_for(SECOND_NS)
    assert bench.received() == []


def test_a_consumer_without_credit_gets_the_bundle_when_it_has_some(bench: HostBench) -> None:
    follow(bench)
    bench.host.deliveries.credit(bench.session, m.Credit("default", "s", 6))
    bench.settle()
    assert bench.push_alone(10)
    bench.commit()
    bench.run_for(SECOND_NS)
    assert kinds(bench.received()) == [m.Acked]
    bench.host.deliveries.credit(bench.session, m.Credit("default", "s", 7))
    bench.settle()
    assert kinds(bench.received()) == [m.Deliver]


def test_a_consumer_that_does_not_read_gets_the_bundle_behind_what_waits_for_it(bench: HostBench) -> None:
    follow(bench)
    told = 0
    while not bench.session.connection.unsent_bytes:
        bench.session.send(m.Refused(1, "usage", "x" * 1000))
        bench.session.connection.flush()
        told += 1
    assert bench.push_alone(10)
    bench.commit()
    bench.run_for(SECOND_NS)
    found: list[m.Message] = []
    while more := bench.received():
        found += more
    assert kinds(found) == [*[m.Refused] * told, m.Acked, m.Deliver]


def test_what_is_pushed_during_the_commit_is_delivered_with_its_own_and_nothing_twice(bench: HostBench) -> None:
    follow(bench)
    assert bench.push_alone(10)
    bench.push(11)
    bench.host.turn(bench.clock.now_ns)
    bench.settle()
    delivered = [message for message in bench.received() if isinstance(message, m.Deliver)]
    assert [index for each in delivered for index in array("I", each.bundle_indexes)] == [6, 7]


def test_a_lease_that_begins_after_a_long_sync_ends(bench: HostBench) -> None:
    bench.subscribe(credit=0, terms=m.Terms(lease_ns=_LEASE_NS))
    bench.host.deliveries.credit(bench.session, m.Credit("default", "s", 1000))
    for number in range(1, 6):
        bench.push(number)
        bench.settle()
    resolve_all(bench, bench.received(), "ack")
    bench.run_for(SECOND_NS)
    assert bench.received() == []
    assert bench.push_alone(10)
    bench.clock.now_ns += 20 * MILLISECOND_NS
    bench.host.turn(bench.clock.now_ns)
    assert bench.host.deadline_ns is None or bench.host.deadline_ns > bench.clock.now_ns + _LEASE_NS
    bench.commit()
    assert kinds(bench.received()) == [m.Acked, m.Deliver]
    bench.run_for(_LEASE_NS + 5 * MILLISECOND_NS)
    assert kinds(bench.received()) == [m.Withdrawn, m.Deliver]


def resolve_all(bench: HostBench, found: list[m.Message], outcome: str, delay_ns: int = 0) -> None:
    for message in found:
        if isinstance(message, m.Deliver):
            names = "default", "s", message.segment_seq, message.token, outcome, message.bundle_indexes
            bench.host.deliveries.resolve(bench.session, m.Resolve(7, *names, delay_ns))
    bench.host.touch()


class Pair:
    """Two hosts to which the same happens. A subscriber that nobody is attached to keeps one of them on the general way."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, terms: m.Terms) -> None:
        self._monkeypatch = monkeypatch
        self.at_once = 0
        """How many bundles came with their commit to the host that may take the short way."""
        self.benches = self._made(terms), self._made(terms, "other")
        self.short = self.benches[0]

    def _made(self, terms: m.Terms, *others: str) -> HostBench:
        clock = ManualClock()
        clocks_of(clock, self._monkeypatch)
        settings = topic_settings(segment_max_open_duration_ns=3600 * SECOND_NS, segment_max_bundle_count=40)
        bench = HostBench(clock, settings)
        for subscriber in others:
            bench.driver.engine.registrations.register(subscriber, "latest")
        bench.push(0)
        bench.settle()
        bench.subscribe(terms=terms)
        return bench

    def each(self, kind: str, number: int, rng: random.Random) -> None:
        """Do the same to both, and compare what their clients get."""
        choices, said = rng.random(), []
        for bench in self.benches:
            clocks_of(bench.clock, self._monkeypatch)
            said.append(self._messages(bench, kind, number, random.Random(choices)))
        assert said[0] == said[1], kind

    def _messages(self, bench: HostBench, kind: str, number: int, rng: random.Random) -> list[m.Message]:
        found: list[m.Message] = []
        if kind == "alone":
            is_taken = bench.push_alone(number, rng.choice((1, 5, 50)))
            if is_taken and rng.random() < 0.3:
                bench.push(number + 1000)
            elif is_taken:
                bench.commit()
                found = bench.received()
                self.at_once += m.Deliver in kinds(found) and bench is self.short
                assert m.Deliver not in kinds(found) or bench is self.short
        elif kind == "push":
            bench.push(number)
        elif kind == "credit":
            bench.host.deliveries.credit(bench.session, m.Credit("default", "s", rng.choice((0, number, 1000))))
        elif kind == "seal":
            bench.driver.engine.seal_now()
        bench.host.touch()
        bench.settle()
        bench.run_for(rng.choice((0, 0, 20 * MILLISECOND_NS)))
        found += bench.received()
        if rng.random() < 0.7:
            resolve_all(bench, found, rng.choice(("ack", "ack", "ack", "defer", "return")), rng.choice((0, 1000)))
            bench.settle()
            found += bench.received()
        return [self._comparable(message, bench) for message in found]

    def _comparable(self, message: m.Message, bench: HostBench) -> m.Message:
        if isinstance(message, m.Deliver | m.Withdrawn):
            first = bench.driver.engine.progress.registry.get("s").leases.tokens.first
            return msgspec.structs.replace(message, token=message.token - first)
        return message

    def close(self) -> None:
        for bench in self.benches:
            bench.close()


@pytest.mark.parametrize("seed", range(_SEEDS))
def test_both_ways_send_the_same_messages(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    rng, terms = random.Random(seed), TERMS[seed % len(TERMS)]
    pair = Pair(monkeypatch, terms)
    for number in range(1, _STEPS):
        pair.each(rng.choices(("alone", "push", "credit", "seal"), (12, 3, 1, 0.3))[0], number, rng)
    may_take = not (terms.max_in_flight_bundles or terms.max_in_flight_bytes or terms.order != "oldest")
    assert (pair.at_once > 0) == may_take
    pair.close()
