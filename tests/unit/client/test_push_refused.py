"""Pushes that are wrong, refused, too slow, or for a worker that is not there."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from quiver_actors.base.model import Durability
from quiver_actors.base.protocol.messages import (
    Acked,
    AckRun,
    ClientMessage,
    DeclareSchema,
    Hello,
    Push,
    Refused,
)
from quiver_actors.base.units import SECOND_NS
from quiver_actors.client import Client, connect
from quiver_actors.client.grouping import GROUP_BUNDLES_MAX
from quiver_actors.errors import (
    BundleTooLarge,
    Draining,
    DurabilityUnknown,
    InvalidBundle,
    NotRunning,
    ProtocolError,
    PushTimeout,
    StorageFull,
    Throttled,
    UnknownSlot,
    UnknownTopic,
    WorkerUnavailable,
)
from tests.unit.client.clock import ClientClock
from tests.unit.client.peer import Background, Peer, PeerSession, refuse, write_node_file
from tests.unit.client.test_push import batch, ids, no_run
from tests.unit.node.worker.harness import until

# --- wrong calls ---------------------------------------------------------------------------------------------------------------


def test_unknown_topic_lists_the_topics(client: Client) -> None:
    with pytest.raises(UnknownTopic, match=r"default.*travel"):
        client.push(batch(), topic="nosuch")


def test_wrong_bundles_are_refused_before_anything_is_sent(peer: Peer, client: Client) -> None:
    with pytest.raises(InvalidBundle, match="at least one slot"):
        client.push({})
    with pytest.raises(UnknownSlot, match="nosuch"):
        client.push({"nosuch": batch()}, topic="travel")
    with pytest.raises(UnknownSlot, match="64"):
        client.push({64: batch()})
    column = pa.array(np.zeros(12 << 20, np.int64))
    with pytest.raises(BundleTooLarge, match="256 MiB"):
        client.push({slot: pa.record_batch({"a": column}) for slot in range(3)})
    assert not peer.of_type(Push)
    client.push(batch())


def test_push_many_stores_what_comes_before_a_wrong_bundle(peer: Peer, client: Client) -> None:
    bundles = [*(batch(value=n) for n in range(70)), {}, batch(value=99)]
    with pytest.raises(InvalidBundle) as caught:
        client.push_many(bundles)
    assert ids(peer) == list(range(70))
    assert "the 70 before it are stored" in caught.value.__notes__[0]


def test_too_few_item_counts_are_refused(client: Client) -> None:
    with pytest.raises(InvalidBundle, match="more bundles than item counts"):
        client.push_many([batch(), batch()], item_counts=[1])


def test_error_of_the_callers_generator_comes_through(peer: Peer, client: Client) -> None:
    def bundles() -> Iterator[pa.RecordBatch]:
        yield batch()
        raise LookupError("out of rows")

    with pytest.raises(LookupError, match="out of rows"):
        client.push_many(bundles())
    client.push(batch())


# --- what a worker refuses --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        ("storage_full", StorageFull),
        ("durability_unknown", DurabilityUnknown),
        ("unknown_topic", UnknownTopic),
        ("disk", Exception),
        ("from the future", ProtocolError),
    ],
)
def test_refusal_becomes_its_error(peer: Peer, client: Client, code: str, kind: type[Exception]) -> None:
    peer.handlers[Push] = refuse(code, "because of the disk")
    with pytest.raises(kind, match="because of the disk"):
        client.push(batch())
    del peer.handlers[Push]
    client.push(batch())


@pytest.mark.parametrize("code", ["draining", "engine_failed", "hard_pressed"])
def test_what_passes_is_tried_again_until_it_has_passed(peer: Peer, client: Client, code: str) -> None:
    refusals = iter([True, True])

    def refuse_twice(session: PeerSession, message: ClientMessage) -> bool:
        return next(refusals, False) and refuse(code)(session, message)

    peer.handlers[Push] = refuse_twice
    client.push_many([batch(value=n) for n in range(100)])
    assert sorted(ids(peer)) == list(range(100))


def test_a_call_keeps_its_order_where_a_message_in_its_middle_is_refused(peer: Peer, client: Client) -> None:
    """What was under way behind it had been stored before it, when the worker was at ease again in between."""
    seen: list[int] = []
    refused: list[ClientMessage] = []

    def hard_pressed_once(session: PeerSession, message: ClientMessage) -> bool:
        assert isinstance(message, Push)
        seen.append(message.call)
        if len(seen) == 2:
            refused.append(message)  # It is told when the next one is there, which was sent in ignorance of it.
            return True
        if len(seen) == 3:
            refuse("hard_pressed")(session, refused[0])
        return 3 <= len(seen) <= 4 and message.call == seen[1] and refuse("hard_pressed")(session, message)

    peer.handlers[Push] = hard_pressed_once
    assert len(client.push_many(no_run(250))) == 250
    assert ids(peer) == list(range(250))
    assert seen.count(-seen[0]) == 1, "the first of those that come again says so"


@pytest.mark.parametrize(("code", "kind"), [("draining", Draining), ("hard_pressed", Throttled)])
def test_what_lasts_is_raised_in_the_end(
    peer: Peer, client: Client, clock: ClientClock, code: str, kind: type[Exception]
) -> None:
    def refuse_until_it_is_late(session: PeerSession, message: ClientMessage) -> bool:
        if len(peer.of_type(Push)) == 3:
            clock.ahead_ns += 61 * SECOND_NS
        return refuse(code, "the node is shutting down")(session, message)

    peer.handlers[Push] = refuse_until_it_is_late
    with pytest.raises(kind, match="shutting down"):
        client.push(batch(), timeout=60)
    assert len(peer.of_type(Push)) == 3


def test_refused_schema_ends_the_connection_with_its_error(peer: Peer, client: Client) -> None:
    def refuse_and_close(session: PeerSession, message: ClientMessage) -> bool:
        session.send(Refused(0, "unknown_slot", "slot 3 is not known here"))
        session.close()
        return True

    peer.handlers[DeclareSchema] = refuse_and_close
    with pytest.raises(UnknownSlot, match="not known here"):
        client.push(batch())


def test_other_protocol_version_says_what_to_install(peer: Peer, client: Client) -> None:
    peer.version = 77
    with pytest.raises(ProtocolError, match="version 77"):
        client.push(batch())


def test_refused_user_is_told_at_once(peer: Peer, client: Client) -> None:
    peer.handlers[Hello] = refuse("not_allowed", "user 7 may not")
    with pytest.raises(Exception, match="user 7 may not"):
        client.push(batch())


@pytest.mark.parametrize("run", [AckRun(999, 0, 0, 0, 1), AckRun(2, 0, 0, 0, 5)], ids=["tag", "count"])
def test_acknowledgement_of_what_was_not_pushed_is_a_protocol_error(peer: Peer, client: Client, run: AckRun) -> None:
    def acknowledge_something_else(session: PeerSession, message: ClientMessage) -> bool:
        session.send(Acked(3, [run]))
        return True

    peer.handlers[Push] = acknowledge_something_else
    with pytest.raises(ProtocolError, match="acknowledged"):
        client.push(batch())


def test_several_runs_of_one_push_make_receipts_in_order(peer: Peer, client: Client) -> None:
    def in_two_segments(session: PeerSession, message: ClientMessage) -> bool:
        assert isinstance(message, Push)
        session.send(Acked(2, [AckRun(message.tag, 1, 65_534, 10, 1), AckRun(message.tag, 2, 0, 11, 1)]))
        session.send(Acked(3, [AckRun(message.tag, 2, 1, 12, 1)]))
        return True

    peer.handlers[Push] = in_two_segments
    receipts = client.push_many([batch(), batch(), batch()])
    assert [(*receipt.bundle_id[2:], receipt.sequence, receipt.durability) for receipt in receipts] == [
        (1, 65_534, 10, Durability.WRITTEN),
        (2, 0, 11, Durability.WRITTEN),
        (2, 1, 12, Durability.SYNCED),
    ]


# --- time ----------------------------------------------------------------------------------------------------------------------


def test_unacknowledged_push_times_out_and_its_late_answer_is_ignored(
    peer: Peer, client: Client, clock: ClientClock
) -> None:
    peer.holds_acks = True
    push = Background(lambda: client.push(batch(value=1), timeout=60))
    peer.wait_for(lambda: len(peer.unacknowledged) == 1)
    clock.ahead_ns += 61 * SECOND_NS
    peer.sessions[0].send(Acked(3, []))  # it looks
    with pytest.raises(PushTimeout, match="may still become durable"):
        push.result()
    peer.holds_acks = False
    peer.acknowledge()
    assert client.push(batch(value=2)).bundle_id.bundle_index == 100
    assert ids(peer) == [1, 2]


def test_full_ring_times_out_without_a_trace(peer: Peer, client: Client) -> None:
    peer.holds_acks = peer.holds_credit = True
    threads = [Background(lambda: client.push(batch(30_000))) for _ in range(4)]
    peer.wait_for(lambda: len(peer.unacknowledged) == 4)
    with pytest.raises(PushTimeout, match=r"no room.*nothing of it was sent"):
        client.push(batch(30_000), timeout=0.05)
    for session, push in peer.unacknowledged:
        assert session.arena is not None
        session.arena.publish_released(push.end_position)
    peer.holds_acks = peer.holds_credit = False
    peer.acknowledge()
    for thread in threads:
        thread.result()
    client.push(batch(30_000))
    assert len(peer.stored) == 5


def test_progress_keeps_push_many_from_timing_out(peer: Peer, client: Client, clock: ClientClock) -> None:
    """The timeout is the longest time without an acknowledgement, however long the whole takes."""

    def under_way() -> int:
        with client._exchange.lock:
            return len(client._channels.channel(0)._groups)

    peer.holds_acks = True
    push = Background(lambda: client.push_many(no_run(5 * GROUP_BUNDLES_MAX), timeout=60))
    peer.wait_for(lambda: len(peer.unacknowledged) == 5)
    for left in range(4, -1, -1):
        clock.ahead_ns += 40 * SECOND_NS
        peer.acknowledge(1)
        until(lambda left=left: under_way() == left, "the client to hear of it")  # type: ignore[misc]
    assert len(push.result()) == 5 * GROUP_BUNDLES_MAX  # type: ignore[arg-type]


def test_worker_that_never_greets_is_unavailable(peer: Peer, client: Client) -> None:
    peer.handlers[Hello] = lambda session, message: True
    with pytest.raises(WorkerUnavailable, match="worker 0 did not answer"):
        client.push(batch(), timeout=0.1)


def test_absent_worker_is_unavailable(run_dir: Path) -> None:
    write_node_file(run_dir, 1)
    with connect(run_dir) as client, pytest.raises(WorkerUnavailable, match="No such file"):
        client.push(batch(), timeout=0.1)


def test_node_that_does_not_run_says_how_to_start_it(run_dir: Path) -> None:
    with pytest.raises(NotRunning, match=r"quiver up --run-dir"):
        connect(run_dir)


@pytest.mark.parametrize("content", ["", "{}", '{"version": 1', '{"version": 2, "pid": 1}'])
def test_broken_node_file_is_not_running(run_dir: Path, content: str) -> None:
    (run_dir / "node.json").write_text(content)
    with pytest.raises(NotRunning):
        connect(run_dir)
