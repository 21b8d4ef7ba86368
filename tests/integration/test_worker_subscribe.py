"""Subscribing to a worker over its socket: delivery, credit, claims, progress, and what happens when a consumer goes away."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from quiver_actors.base.config import TopicSettings
from quiver_actors.base.metrics.figures import RowKind, SubscriberFigure, WorkerFigure
from quiver_actors.base.protocol import messages as m
from quiver_actors.base.units import SECOND_NS
from quiver_actors.node.worker import lifecycle
from quiver_actors.supervisor.exitcodes import ChildExit
from tests.unit.node.worker.faulty_disk import FaultyDisk
from tests.unit.node.worker.harness import WireClient, WorkerThread, running, settings, table, topic, until

FAST_SEAL = topic(segment__max_open_duration_ns=20_000_000)
NO_SEAL = topic(segment__max_open_duration_ns=3600 * SECOND_NS)
UNTIL_READ = m.Terms(lease_ns=0)
"""Terms of a consumer that reads when all is pushed, which takes a slow disk longer than a lease."""


def pushed(worker: WorkerThread, *values: int) -> WireClient:
    """A producer that has pushed one bundle a value into one sealed segment."""
    client = worker.producer()
    client.push_and_wait(*(table(value) for value in values))
    client.flush()
    return client


def subscriber_figure(worker: WorkerThread, label: str, figure: SubscriberFigure) -> int | None:
    rows = worker.region().rows
    found = [row.values[figure] for row in rows if row.kind == RowKind.SUBSCRIBER and row.label == label]
    return found[0] if found else None


def first_values(found: list[tuple[m.Deliver, int, list[int]]]) -> list[int]:
    return [values[0] for _, _, values in found]


def test_delivery_never_passes_the_credit(tmp_path: Path) -> None:
    with running(tmp_path) as worker:
        pushed(worker, *range(10))
        client = worker.connect()
        client.register("s", credit=4)
        deliver, indexes = client.delivered()
        assert indexes == [0, 1, 2, 3]
        client.resolve(deliver, indexes)
        client.flush_progress("s")
        assert not [message for message in client.received if isinstance(message, m.Deliver)]
        client.credit("s", 100)
        assert client.delivered()[1] == [4, 5, 6, 7, 8, 9]


def test_credit_can_be_taken_back(tmp_path: Path) -> None:
    with running(tmp_path) as worker:
        producer = worker.producer()
        client = worker.connect()
        client.register("s", credit=10)
        client.credit("s", -7)
        client.flush_progress("s")
        producer.push_and_wait(*(table(value) for value in range(10)))
        producer.flush()
        assert client.delivered()[1] == [0, 1, 2]
        client.credit("s", -1 << 40)
        client.credit("s", (1 << 40) + 2)
        assert client.delivered()[1] == [3, 4]


@pytest.mark.parametrize("seals", [FAST_SEAL, NO_SEAL], ids=["fast", "none"])
def test_bundles_are_delivered_as_soon_as_they_are_durable(tmp_path: Path, seals: TopicSettings) -> None:
    with running(tmp_path, settings(seals)) as worker:
        producer, client = worker.producer(), worker.connect()
        client.register("s", start="latest", credit=100)
        for value in range(5):
            producer.push_and_wait(table(value))
            assert first_values(client.values(1)) == [value]


def test_descriptor_comes_once_for_all_subscribers_of_a_connection(tmp_path: Path) -> None:
    with running(tmp_path) as worker:
        pushed(worker, 1, 2)
        client = worker.connect()
        client.register("a", credit=1)
        client.register("b", credit=2)
        client.values(1, "a")
        client.values(2, "b")
        client.credit("a", 1)
        client.values(1, "a")
        assert not client.descriptors
        assert not [message for message in client.received if isinstance(message, m.SegmentOpened)]


def test_finished_segment_is_retired_and_its_file_goes(tmp_path: Path) -> None:
    with running(tmp_path) as worker:
        pushed(worker, 1, 2, 3)
        client = worker.connect()
        client.register("s", credit=10)
        deliver, indexes = client.delivered()
        client.resolve(deliver, indexes[:2])
        client.resolve(deliver, indexes[2:], outcome="reject")
        retired = client.expect(m.SegmentRetired)
        assert (retired.subscriber, retired.segment_seq) == ("s", deliver.segment_seq)
        segments = worker.data_dir / "default/core_0/segments"
        until(lambda: not list(segments.iterdir()), "the file to be deleted")
        kept_open = [link for link in map(_target, os.listdir("/proc/self/fd")) if link.startswith(f"{segments}/")]
        assert kept_open == []


def _target(descriptor: str) -> str:
    try:
        return os.readlink(f"/proc/self/fd/{descriptor}")
    except FileNotFoundError:
        return ""


def test_descriptors_of_a_segment_have_positions_of_their_own(tmp_path: Path) -> None:
    with running(tmp_path) as worker:
        pushed(worker, 1)
        for _ in range(2):
            client = worker.connect()
            client.send(m.OpenSegment(1, "default", 0))
            opened = client.expect(m.SegmentOpened)
            descriptor = client.descriptors.popleft()
            assert len(os.read(descriptor, 1 << 20)) == opened.size_bytes
            with pytest.raises(OSError, match="Bad file descriptor"):
                os.write(descriptor, b"x")
            os.close(descriptor)


def test_segment_stays_for_the_subscriber_that_is_behind(tmp_path: Path) -> None:
    with running(tmp_path) as worker:
        pushed(worker, 1)
        client = worker.connect()
        client.register("slow")
        client.register("fast", credit=1)
        deliver, indexes = client.delivered("fast")
        client.resolve(deliver, indexes)
        client.expect(m.SegmentRetired)
        client.flush_progress("fast")
        client.credit("slow", 1)
        assert first_values(client.values(1, "slow")) == [1]


def test_acks_without_flush_survive_a_drain(tmp_path: Path) -> None:
    with running(tmp_path, settings(topic(progress_flush_interval_ns=60_000_000_000))) as worker:
        pushed(worker, 1, 2)
        client = worker.connect()
        client.register("s", credit=1)
        deliver, indexes = client.delivered()
        tag = client.resolve(deliver, indexes)
        client.send(m.ListSegments(tag + 1, "default"))
        client.expect(m.SegmentList)
        assert worker.stop() == ChildExit.DRAINED
    with running(tmp_path) as worker:
        client = worker.connect()
        client.register("s", credit=10)
        assert first_values(client.values(1)) == [2]


def test_registration_is_durable_when_it_is_answered(tmp_path: Path) -> None:
    with running(tmp_path) as worker:
        client = worker.connect()
        client.register("s")
        assert (worker.data_dir / "default/core_0/quiver.sub.s").exists()


def test_unregister_forgets_progress_and_detaches_every_connection(tmp_path: Path) -> None:
    with running(tmp_path) as worker:
        producer = pushed(worker, 1)
        first, second = worker.connect(), worker.connect()
        first.register("s", credit=1)
        first.delivered()
        second.register("s")
        second.send(m.Unregister(7, "default", "s"))
        assert second.expect(m.Refused).code == "unknown_subscriber", "it had the subscriber, too"
        second.done(7)
        assert not (worker.data_dir / "default/core_0/quiver.sub.s").exists()
        first.credit("s", 1)
        answer = first.expect(m.Refused)
        assert (answer.tag, answer.code) == (0, "unknown_subscriber")
        until(lambda: subscriber_figure(worker, "default/s", SubscriberFigure.CLAIMED) is None, "its figures to go")
        producer.push_and_wait(table(2))


@pytest.mark.parametrize(
    ("request_message", "code"),
    [
        (m.Register(1, "default", "no/slash", "latest"), "invalid_id"),
        (m.Register(1, "default", "s", "yesterday"), "usage"),
        (m.Register(1, "nowhere", "s", "latest"), "unknown_topic"),
        (m.Unregister(1, "default", "s"), "unknown_subscriber"),
        (m.OpenSegment(1, "default", 99), "not_stored"),
        (m.Flush(1, "nowhere"), "unknown_topic"),
        (m.Resolve(1, "default", "s", 0, 1, "ack", bytes(4)), "unknown_subscriber"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, m.Message) else str(value),
)
def test_request_that_cannot_be_met_is_refused_and_the_connection_goes_on(
    tmp_path: Path, request_message: m.Message, code: str
) -> None:
    with running(tmp_path) as worker:
        client = worker.connect()
        client.send(request_message)
        answer = client.expect(m.Refused)
        assert (answer.tag, answer.code) == (1, code)
        client.register("s")


def test_deaf_consumer_holds_up_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("quiver_actors.node.worker.connection.UNSENT_BYTES_MAX", 1)
    node = settings(topic(segment__max_bundle_count=1))
    with running(tmp_path, node) as worker:
        producer, deaf, client = worker.producer(), worker.connect(), worker.connect()
        deaf.register("deaf", credit=1_000_000)
        client.register("s", credit=1_000_000, terms=UNTIL_READ)
        for value in range(60):
            producer.push_and_wait(table(value))
        producer.flush()
        assert first_values(client.values(60)) == list(range(60))


def test_paused_consumer_gets_the_rest_when_it_reads_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("quiver_actors.node.worker.connection.UNSENT_BYTES_MAX", 1)
    with running(tmp_path, settings(FAST_SEAL)) as worker:
        producer, client = worker.producer(), worker.connect()
        client.register("s", start="latest", credit=1_000_000, terms=UNTIL_READ)
        for round_number in range(3):
            for value in range(20):
                producer.push_and_wait(table(round_number * 20 + value))
            assert first_values(client.values(20)) == list(range(round_number * 20, round_number * 20 + 20))


def test_segment_that_cannot_be_opened_is_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("quiver_actors.node.worker.dispatcher.UNREADABLE_DELAY_NS", 20_000_000)
    (tmp_path / "data").mkdir()
    disk = FaultyDisk(str(tmp_path / "data"))
    with running(tmp_path, disk=disk) as worker:
        pushed(worker, 1)
        disk.faults.set("open", "segments/")
        client = worker.connect()
        client.register("s", credit=1)
        until(lambda: any(row.kind == RowKind.ERROR for row in worker.region().rows), "the error to be shown")
        disk.faults.clear()
        assert first_values(client.values(1)) == [1]
    disk.close()


def test_figures_follow_a_subscriber(tmp_path: Path) -> None:
    with running(tmp_path) as worker:
        pushed(worker, *range(5))
        client = worker.connect()
        client.register("s", credit=3)
        deliver, indexes = client.delivered()
        client.resolve(deliver, indexes[:2])

        def shown(figure: SubscriberFigure) -> int | None:
            return subscriber_figure(worker, "default/s", figure)

        until(lambda: shown(SubscriberFigure.ACKED) == 2, "acks to be counted")
        assert shown(SubscriberFigure.LAG_BUNDLES) == 3
        assert shown(SubscriberFigure.CLAIMED) == 1
        assert shown(SubscriberFigure.CONNECTIONS) == 1
        assert (shown(SubscriberFigure.OLDEST_UNIX_NS) or 0) > 0
        client.close()
        until(lambda: shown(SubscriberFigure.CONNECTIONS) == 0, "the connection to be gone")
        assert shown(SubscriberFigure.CLAIMED) == 0


def test_listener_is_gone_while_draining_and_claims_stay_unresolved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lifecycle, "CLOSE_PATIENCE_NS", 0)
    with running(tmp_path) as worker:
        pushed(worker, 1)
        client = worker.connect()
        client.register("s", credit=1)
        client.delivered()
        assert worker.stop() == ChildExit.DRAINED
        client.expect_end()
        with pytest.raises(FileNotFoundError):
            worker.connect()
    with running(tmp_path) as worker:
        client = worker.connect()
        client.register("s", credit=1)
        assert first_values(client.values(1)) == [1]
        until(
            lambda: any(row.kind == RowKind.WORKER and row.values[WorkerFigure.CPU_NS] for row in worker.region().rows),
            "CPU",
        )
