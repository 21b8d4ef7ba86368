"""Delivery through a real socket: claims of several connections, windows, dead letters, gaps, questions, orphans."""

from __future__ import annotations

import array
import json
import os
from pathlib import Path

import pytest

from quiver_actors.base.protocol import messages as m
from quiver_actors.base.units import MILLISECOND_NS
from quiver_actors.client import connect
from quiver_actors.node.worker.figures import PUBLISH_INTERVAL_NS
from tests.unit.node.worker.harness import WireClient, WorkerThread, running, settings, table, topic, until


def pushed(worker: WorkerThread, *values: int) -> WireClient:
    producer = worker.producer()
    for value in values:
        producer.push_and_wait(table(value))
    producer.flush()
    return producer


def refused(answer: m.NotResolved) -> list[tuple[str, list[int]]]:
    return [(refusal.code, list(array.array("I", refusal.bundle_indexes))) for refusal in answer.refusals]


def numbers(found: list[tuple[m.Deliver, int, list[int]]]) -> list[int]:
    return [values[0] for _, _, values in found]


def info(client: WireClient, subscriber: str) -> m.PendingInfo:
    tag = client.next_tag()
    client.send(m.Pending(tag, "default", subscriber))
    return client.expect(m.PendingInfo, lambda found: found.tag == tag)


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


def test_one_bundle_is_always_allowed_by_a_window_in_bytes(tmp_path: Path) -> None:
    with running(tmp_path) as worker:
        pushed(worker, 1, 2)
        client = worker.connect()
        client.register("s", credit=100, terms=m.Terms(max_in_flight_bytes=1))
        deliver, indexes = client.delivered()
        assert indexes == [0]
        client.resolve(deliver, indexes)
        assert client.delivered()[1] == [1]


def test_window_in_bytes_knows_how_large_each_bundle_is(tmp_path: Path) -> None:
    """Counted by their mean, one more bundle would be delivered."""
    with running(tmp_path) as worker:
        producer = worker.producer()
        for rows in (1000, 1000, 1000, 1, 1, 1):
            producer.push_and_wait(table(*range(rows)))
        producer.flush()
        client = worker.connect()
        client.register("s", credit=100, terms=m.Terms(max_in_flight_bytes=10_000))
        deliver, indexes = client.delivered()
        assert indexes == [0], "each of the first three takes 8 KB"
        client.resolve(deliver, indexes)
        assert client.delivered()[1] == [1]


def test_ack_through_and_what_is_pending(tmp_path: Path) -> None:
    with running(tmp_path) as worker:
        producer = pushed(worker, 1, 2, 3)
        producer.push_and_wait(table(4))
        client = worker.connect()
        client.register("s")
        found = info(client, "s")
        assert (found.pending, found.unsealed, found.oldest_segment_seq, found.drained) == (4, 0, 0, False)
        client.send(m.Pending(9, "default", "s", 0, 1, 0, 3))
        assert client.expect(m.PendingInfo, lambda answer: answer.tag == 9).in_range == 2
        client.send(m.Pending(12, "default", "s", 0, 2, 1, 1))
        assert client.expect(m.PendingInfo, lambda answer: answer.tag == 12).in_range == 2, "over the seal"
        client.send(m.AckThrough(10, "default", "s", 0, 1))
        client.done(10)
        client.credit("s", 1)
        assert client.delivered()[1] == [2]
        client.send(m.AckThrough(11, "default", "s", 5, 0))
        assert client.expect(m.Refused).code == "usage"
        client.send(m.AckThrough(13, "default", "s", 1, 0))
        client.done(13)
        assert info(client, "s").drained, "an unsealed bundle is resolved like any other"


def test_bundle_that_is_delivered_too_often_becomes_a_dead_letter(tmp_path: Path) -> None:
    terms = m.Terms(max_deliveries=2)
    with running(tmp_path) as worker:
        producer = pushed(worker, 7, 8)
        client = worker.connect()
        client.register("s", credit=1, terms=terms)
        for _ in range(2):
            deliver, indexes = client.delivered()
            assert indexes == [0]
            client.resolve(deliver, [0], outcome="defer")
            client.credit("s", 1)
        assert client.delivered()[1] == [1]
        until(lambda: info(client, "s").blocked == 0, "the dead letter to be durable")
        reader = worker.connect()
        assert reader.welcome is not None
        assert {found.name for found in reader.welcome.topics} == {"default", "default-dead"}
        reader.register("d", topic="default-dead", credit=5)
        reader.flush("default-dead")
        letter, _ = reader.delivered("d")
        bundle = reader.segments["default-dead", letter.segment_seq].bundle(0)
        assert bundle[0].column("x").to_pylist() == [7]
        row = bundle[63].to_pylist()[0]
        assert (row["dead_letter.topic"], row["dead_letter.subscriber"]) == ("default", "s")
        assert (row["dead_letter.segment_seq"], row["dead_letter.bundle_index"]) == (0, 0)
        assert (row["dead_letter.delivery_count"], row["dead_letter.reason"]) == (2, "max_deliveries")
        client.flush_progress("s")
        assert worker.stop() == 0
        producer.close()
    with running(tmp_path) as worker:
        reader = worker.connect()
        reader.register("d", topic="default-dead", credit=5)
        assert len(reader.values(1, "d")) == 1, "the topic is there after a restart"


def test_damage_found_by_a_consumer_is_announced_once(tmp_path: Path) -> None:
    with running(tmp_path) as worker:
        pushed(worker, 1, 2)
        pushed(worker, 3)
        client = worker.connect()
        client.register("s", credit=10)
        first, indexes = client.delivered()
        client.delivered()
        path = tmp_path / "data/default/core_0/segments/0000000000000000.qseg"
        path.chmod(0o600)
        content = bytearray(path.read_bytes())
        content[300] ^= 0xFF
        path.write_bytes(content)
        packed = array.array("I", indexes).tobytes()
        client.send(m.Unreadable(70, "default", "s", 0, first.token, packed, "checksum"))
        gap = client.expect(m.Gap)
        # The rest of the segment was rescued, so only the damaged bundle is lost.
        assert (gap.segment_seq, gap.bundle_index_first, gap.bundle_index_last) == (0, 0, 0)
        assert (gap.bundle_count, gap.reason) == (1, "damaged")
        client.send(m.GapAck(71, "default", "s", gap.notice))
        client.done(71)
        until((path.parent.parent / "quarantine").exists, "the damaged file to be in quarantine")
        other = worker.connect()
        other.register("s", credit=10)
        assert info(other, "s").gaps == 0


def test_unacknowledged_gap_goes_to_the_next_connection_also_after_a_restart(tmp_path: Path) -> None:
    with running(tmp_path) as worker:
        pushed(worker, 1)
        client = worker.connect()
        client.register("s")
        worker.stop()
    path = tmp_path / "data/default/core_0/segments/0000000000000000.qseg"
    path.chmod(0o600)
    content = bytearray(path.read_bytes())
    content[300] ^= 0xFF
    path.write_bytes(content)
    notices = set()
    for _ in range(2):
        with running(tmp_path) as worker:
            for _ in range(2):
                client = worker.connect()
                client.register("s", credit=1)
                notices.add(client.expect(m.Gap).notice)
                client.close()
    assert len(notices) == 1
    with running(tmp_path) as worker:
        client = worker.connect()
        client.register("s", credit=1)
        client.send(m.GapAck(1, "default", "s", client.expect(m.Gap).notice))
        client.done(1)
        worker.stop()
    with running(tmp_path) as worker:
        client = worker.connect()
        client.register("s", credit=1)
        assert info(client, "s").drained


def test_consumers_of_one_subscriber_share_evenly(tmp_path: Path) -> None:
    with running(tmp_path) as worker:
        producer = worker.producer()
        clients = [worker.connect() for _ in range(4)]
        for client in clients:
            client.register("s", credit=100)
        producer.push_and_wait(*(table(number) for number in range(20)))
        producer.flush()
        assert [len(client.delivered()[1]) for client in clients] == [5, 5, 5, 5]


def test_credit_sent_again_changes_nothing(tmp_path: Path) -> None:
    with running(tmp_path) as worker:
        client = worker.connect()
        client.register("s", credit=2)
        pushed(worker, 1, 2, 3)
        client.credit("s", 0)
        assert numbers(client.values(2)) == [1, 2]
        client.credit("s", 0)
        assert info(client, "s").claimed == 2


def test_lost_wake_ups_delay_a_consumer_by_no_more_than_one_tick(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing wakes the deliveries of that worker, and the client says nothing twice: the worker's own tick finds every bundle."""
    assert PUBLISH_INTERVAL_NS <= 500 * MILLISECOND_NS
    monkeypatch.setattr("quiver_actors.node.worker.dispatcher.Dispatcher.wake", lose_wake_up)
    with running(tmp_path) as worker:
        as_node(tmp_path)
        with connect(tmp_path / "run") as client, client.subscribe("s", prefetch=4) as subscription:
            for first in range(0, 12, 3):
                pushed(worker, first, first + 1, first + 2)
                for number in range(first, first + 3):
                    delivery = subscription.get(60)
                    assert delivery is not None, "the worker looks again"
                    assert delivery.batch.column("x").to_pylist() == [number]
                    delivery.ack()
            assert subscription.all_drained()


def test_lost_wake_ups_delay_a_gap_notice_by_no_more_than_one_tick(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("quiver_actors.node.worker.dispatcher.Dispatcher.wake", lose_wake_up)
    with running(tmp_path) as worker:
        client = worker.connect()
        client.register("s", credit=2)
        pushed(worker, 1)
        assert numbers(client.values(1)) == [1]
        client.send(m.Seek(client.next_tag(), "default", "s", "latest"))
        assert client.expect(m.Gap).bundle_count == 1


def as_node(root: Path) -> None:
    """What a supervisor would say of that worker."""
    node = {"version": 1, "pid": os.getpid(), "data_dir": str(root / "data"), "started_unix_ns": 1}
    (root / "run/node.json").write_text(json.dumps({**node, "cores": [{"core": 0, "socket": "core_0.sock"}]}))


def lose_wake_up(_dispatcher: object, _subscriber: str | None = None) -> None:
    """Take the place of `Dispatcher.wake`: who may get something is not remembered."""


def test_orphans_are_listed_and_dropped(tmp_path: Path) -> None:
    with running(tmp_path) as worker:
        pushed(worker, 1, 2)
        client, gone = worker.connect(), worker.connect()
        client.register("stays")
        gone.register("orphan", credit=1)
        gone.delivered()
        client.send(m.Unregister(1, "default", "orphan", only_orphan=True))
        assert client.expect(m.Refused).code == "usage"
        gone.close()
        until(lambda: listed(client)["orphan"].connections == 0, "the connection to be gone")
        assert listed(client)["orphan"].detached_since_unix_ns > 0
        assert (listed(client)["orphan"].pending, listed(client)["stays"].detached_since_unix_ns) == (2, 0)
        client.send(m.Unregister(2, "default", "orphan", only_orphan=True))
        assert client.expect(m.Done, lambda done: done.tag == 2).value == 2
        assert set(listed(client)) == {"stays"}


def test_orphan_ttl_drops_by_itself(tmp_path: Path) -> None:
    with running(tmp_path, settings(topic(orphan_ttl_ns=100 * MILLISECOND_NS))) as worker:
        client, gone = worker.connect(), worker.connect()
        client.register("stays")
        gone.register("orphan")
        gone.close()
        until(lambda: set(listed(client)) == {"stays"}, "the orphan to be dropped")


def listed(client: WireClient) -> dict[str, m.SubscriberInfo]:
    tag = client.next_tag()
    client.send(m.ListSubscribers(tag, "default"))
    answer = client.expect(m.SubscriberList, lambda found: found.tag == tag)
    return {found.subscriber: found for found in answer.subscribers}
