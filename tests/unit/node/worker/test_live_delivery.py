"""What a worker sends when bundles become durable in a log that is not sealed: one host, as the worker's loop drives it."""

from __future__ import annotations

from quiver_actors.base.protocol import messages as m
from quiver_actors.base.protocol.places import PLACE
from quiver_actors.base.units import SECOND_NS
from tests.support.host_bench import HostBench


def of_kind(found: list[m.Message], *kinds: type[m.Message]) -> list[m.Message]:
    return [message for message in found if isinstance(message, kinds)]


def test_the_producer_hears_of_a_commit_before_the_subscriber(bench: HostBench) -> None:
    bench.subscribe()
    bench.push(1)
    bench.settle()
    kinds = [type(message) for message in of_kind(bench.received(), m.Acked, m.Deliver)]
    assert kinds == [m.Acked, m.Deliver]


def test_a_commit_of_many_pushes_is_one_delivery(bench: HostBench) -> None:
    bench.subscribe()
    for number in range(1, 20):
        bench.push(number)
    bench.settle()
    (deliver,) = of_kind(bench.received(), m.Deliver)
    assert isinstance(deliver, m.Deliver)
    assert len(deliver.places) == 19 * PLACE.size
    assert len(deliver.bundle_indexes) == 19 * 4


def test_places_say_where_the_entries_are(bench: HostBench) -> None:
    bench.subscribe()
    bench.push(1, rows=3)
    bench.push(2, rows=300)
    bench.settle()
    (deliver,) = of_kind(bench.received(), m.Deliver)
    assert isinstance(deliver, m.Deliver)
    (first, first_bytes, items), (second, second_bytes, _) = PLACE.iter_unpack(deliver.places)
    assert first + first_bytes == second
    assert second_bytes > first_bytes
    assert items == -1


def test_a_log_is_sent_once_and_its_segment_when_bundles_of_it_come_again(bench: HostBench) -> None:
    bench.host.deliveries.register(bench.session, m.Register(1, "default", "s", "earliest"))
    bench.host.deliveries.credit(bench.session, m.Credit("default", "s", 1000))
    bench.host.touch()
    bench.settle()
    (opened,) = of_kind(bench.received(), m.SegmentOpened)
    assert isinstance(opened, m.SegmentOpened)
    assert not opened.is_sealed
    bench.push(1)
    bench.settle()
    found = bench.received()
    assert not of_kind(found, m.SegmentOpened)
    (deliver,) = of_kind(found, m.Deliver)
    assert isinstance(deliver, m.Deliver)
    bench.seal()
    assert not of_kind(bench.received(), m.SegmentOpened), "nothing of it is to be delivered"
    defer = m.Resolve(5, "default", "s", 0, deliver.token, "defer", deliver.bundle_indexes, 0)
    bench.host.deliveries.resolve(bench.session, defer)
    bench.host.touch()
    bench.settle()
    found = bench.received()
    (opened,) = of_kind(found, m.SegmentOpened)
    (again,) = of_kind(found, m.Deliver)
    assert isinstance(opened, m.SegmentOpened)
    assert opened.is_sealed
    assert isinstance(again, m.Deliver)
    assert not again.places


def test_who_has_no_credit_gets_what_is_durable_when_it_has_some(bench: HostBench) -> None:
    bench.subscribe(credit=1)
    bench.push(1)
    bench.push(2)
    bench.run_for(SECOND_NS)
    assert bench.delivered() == 0, "the bundle of the fixture has used the credit"
    bench.host.deliveries.credit(bench.session, m.Credit("default", "s", 3))
    bench.host.touch()
    bench.settle()
    assert bench.delivered() == 2


def test_a_segment_that_is_sealed_when_all_is_acknowledged_is_let_go_at_once(bench: HostBench) -> None:
    bench.host.deliveries.register(bench.session, m.Register(1, "default", "s", "earliest"))
    bench.host.deliveries.credit(bench.session, m.Credit("default", "s", 1000))
    bench.host.touch()
    bench.settle()
    (deliver,) = of_kind(bench.received(), m.Deliver)
    assert isinstance(deliver, m.Deliver)
    acknowledge = m.Resolve(5, "default", "s", 0, deliver.token, "ack", deliver.bundle_indexes, 0)
    bench.host.deliveries.resolve(bench.session, acknowledge)
    bench.host.touch()
    bench.run_for(SECOND_NS)
    assert not of_kind(bench.received(), m.SegmentRetired), "more may come"
    bench.seal()
    (retired,) = of_kind(bench.received(), m.SegmentRetired)
    assert isinstance(retired, m.SegmentRetired)
    assert retired.segment_seq == 0
