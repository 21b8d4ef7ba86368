"""Claims of several consumers over a real socket: deferred, shared, given back by a death, and never resolved by others."""

from __future__ import annotations

from pathlib import Path

from quiver_actors.base.protocol import messages as m
from tests.integration.test_worker_subscribe import first_values, pushed, refused
from tests.unit.node.worker.harness import running


def test_deferred_bundle_comes_again_and_blocks_nobody(tmp_path: Path) -> None:
    with running(tmp_path) as worker:
        pushed(worker, 1, 2, 3)
        client = worker.connect()
        client.register("s", credit=1)
        deliver, _ = client.delivered()
        names = (deliver.topic, deliver.subscriber, deliver.segment_seq, deliver.token)
        deferred = m.Resolve(client.next_tag(), *names, "defer", deliver.bundle_indexes, 30_000_000)
        # At once: the worker takes both in one turn, before the delay is over.
        client.send(deferred, m.Credit("default", "s", 4))
        assert first_values(client.values(3)) == [2, 3, 1]


def test_defer_without_delay_returns_the_bundle_at_once(tmp_path: Path) -> None:
    with running(tmp_path) as worker:
        pushed(worker, 1)
        client = worker.connect()
        client.register("s", credit=1)
        for _ in range(3):
            deliver, indexes = client.delivered()
            assert indexes == [0]
            client.resolve(deliver, indexes, outcome="defer")
            client.credit("s", 1)


def test_claims_of_a_dead_consumer_go_to_another_at_once(tmp_path: Path) -> None:
    with running(tmp_path) as worker:
        pushed(worker, *range(6))
        dying, living = worker.connect(), worker.connect()
        dying.register("s", credit=4)
        living.register("s", credit=10)
        deliver, indexes = dying.delivered()
        assert len(indexes) == 4
        dying.resolve(deliver, indexes[:1])
        dying.flush_progress("s")
        dying.close()
        assert sorted(first_values(living.values(5))) == [1, 2, 3, 4, 5]


def test_work_is_shared_without_overlap(tmp_path: Path) -> None:
    with running(tmp_path) as worker:
        pushed(worker, *range(100))
        clients = [worker.connect() for _ in range(4)]
        for client in clients:
            client.register("s")
        for client in clients:
            client.credit("s", 25)
        shares = [first_values(client.values(25)) for client in clients]
        assert sorted(value for share in shares for value in share) == list(range(100))


def test_claim_of_another_connection_cannot_be_resolved(tmp_path: Path) -> None:
    with running(tmp_path) as worker:
        pushed(worker, 1, 2)
        holder, other = worker.connect(), worker.connect()
        holder.register("s", credit=1)
        deliver, _ = holder.delivered()
        other.register("s", credit=1)
        own, _ = other.delivered()
        tag = other.resolve(deliver, [0, 1])
        answer = other.expect(m.NotResolved)
        assert answer.tag == tag
        # Its own claim does not go under the token of another one either: it is newer.
        assert refused(answer) == [("not_claimed", [0]), ("fenced", [1])]
        other.resolve(own, [1])
        other.flush_progress("s")
        holder.resolve(deliver, [0])
        holder.flush_progress("s")
        holder.expect(m.SegmentRetired)
