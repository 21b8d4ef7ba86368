"""What subscribers cost a worker while nothing happens: no turn, no message, no work of a thread."""

from __future__ import annotations

from quiver_actors.base.protocol import messages as m
from quiver_actors.base.units import SECOND_NS
from tests.support.host_bench import HostBench

SUBSCRIBERS = 50


def be_idle(bench: HostBench) -> None:
    """Fifty subscribers with credit have acknowledged all that there is, and their progress is durable."""
    names = [f"s{number}" for number in range(SUBSCRIBERS)]
    for name in names:
        bench.host.deliveries.register(bench.session, m.Register(1, "default", name, "earliest"))
        bench.host.deliveries.credit(bench.session, m.Credit("default", name, 1000))
    bench.host.touch()
    bench.settle()
    delivered = [message for message in bench.received() if isinstance(message, m.Deliver)]
    assert [each.subscriber for each in delivered] == names
    for each in delivered:
        claims = each.segment_seq, each.token, "ack", each.bundle_indexes, 0
        bench.host.deliveries.resolve(bench.session, m.Resolve(5, "default", each.subscriber, *claims))
    bench.host.touch()
    bench.run_for(60 * SECOND_NS)
    bench.received()
    bench.run_queue.take_recent()
    bench.run_queue.take_unswept(bench.clock.now_ns)


def turns_within(bench: HostBench, duration_ns: int) -> int:
    """Let time pass, and count how often the worker has to look at the topic."""
    end_ns, turns = bench.clock.now_ns + duration_ns, 0
    while (due_ns := bench.host.deadline_ns) is not None and due_ns <= end_ns:
        bench.clock.now_ns = max(due_ns, bench.clock.now_ns + 1)
        bench.settle()
        turns += 1
    bench.clock.now_ns = end_ns
    return turns


def test_idle_subscribers_cost_nothing(bench: HostBench) -> None:
    be_idle(bench)
    commits = len(bench.commits)
    assert turns_within(bench, 3000 * SECOND_NS) == 0
    assert bench.received() == []
    assert len(bench.commits) == commits
    assert bench.run_queue.take_recent() == set(), "the looks at lost wake-ups, ten a second, leave the topic out"
    assert bench.run_queue.take_unswept(bench.clock.now_ns) == []


def test_they_get_what_comes_at_once_and_rest_again(bench: HostBench) -> None:
    be_idle(bench)
    assert turns_within(bench, 600 * SECOND_NS) == 0
    bench.push(1)
    bench.settle()
    delivered = [message for message in bench.received() if isinstance(message, m.Deliver)]
    assert len(delivered) == SUBSCRIBERS, "one message for each"
    for each in delivered:
        claims = each.segment_seq, each.token, "ack", each.bundle_indexes, 0
        bench.host.deliveries.resolve(bench.session, m.Resolve(6, "default", each.subscriber, *claims))
    bench.host.touch()
    bench.run_for(60 * SECOND_NS)
    bench.received()
    assert turns_within(bench, 600 * SECOND_NS) == 0
    assert bench.received() == []
