from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from quiver_actors.client import Client, connect
from quiver_actors.client.grouping import GROUP_BUNDLES_MAX
from quiver_actors.client.push_channel import DECLARED_BYTES_MAX, DECLARED_MAX
from quiver_actors.client.receipts import Receipts
from quiver_actors.errors import (
    BundleTooLarge,
    ClosedError,
    Draining,
    DurabilityUnknown,
    InvalidBundle,
    NotRunning,
    ProtocolError,
    PushTimeout,
    SharedMemoryError,
    StorageFull,
    Throttled,
    UnknownSlot,
    UnknownTopic,
    WorkerUnavailable,
)
from quiver_actors.model import BundleId, Durability
from quiver_actors.protocol.framing import encode_frame
from quiver_actors.protocol.messages import (
    ENTRY_ROW,
    FRAME_BYTES_MAX,
    Acked,
    AckRun,
    ArenaAttached,
    AttachArena,
    ClientMessage,
    DeclareSchema,
    Hello,
    Push,
    Refused,
    Welcome,
)
from quiver_actors.units import SECOND_NS
from quiver_actors.worker.session import SCHEMA_BYTES_MAX, SCHEMAS_MAX
from tests.unit.client.clock import ClientClock
from tests.unit.client.peer import TOPICS, Background, Peer, PeerSession, refuse, write_node_file
from tests.unit.worker.harness import until


def batch(rows: int = 3, value: int = 0) -> pa.RecordBatch:
    return pa.record_batch({"id": pa.array(np.arange(value, value + rows, dtype=np.int64))})


def no_run(count: int) -> list[dict[int, pa.RecordBatch]]:
    """Bundles whose neighbours are in other slots, so that a message holds `GROUP_BUNDLES_MAX` of them."""
    return [{n % 2: batch(value=n)} for n in range(count)]


def ids(peer: Peer) -> list[int]:
    """The first id of each stored bundle, in the order of arrival."""
    return [next(iter(stored.entry.batches.values())).column(0)[0].as_py() for stored in peer.stored]


# --- the plain way -------------------------------------------------------------------------------------------------------------


def test_receipt_says_where_the_bundle_is_and_how_safe(peer: Peer, client: Client) -> None:
    receipt = client.push({"flights": batch(), "weather": batch(5)}, topic="travel", item_count=8)
    assert receipt.bundle_id == BundleId("travel", 0, 5, 100)
    assert receipt.sequence == 0
    assert receipt.durability is Durability.SYNCED
    (stored,) = peer.stored
    assert stored.topic == "travel"
    assert stored.entry.item_count == 8
    assert {slot: found.num_rows for slot, found in stored.entry.batches.items()} == {3: 3, 7: 5}


def test_push_many_sends_a_first_message_of_sixty_four(peer: Peer, client: Client) -> None:
    receipts = client.push_many(batch(value=n) for n in range(130))
    assert [len(push.entries) // ENTRY_ROW.size for push in peer.of_type(Push)] == [64, 66]
    assert ids(peer) == list(range(130))
    assert [receipt.bundle_id.bundle_index for receipt in receipts[:64]] == list(range(100, 164))
    assert [receipt.sequence for receipt in receipts[64:128]] == list(range(1000, 1064))


def test_push_many_keeps_messages_below_a_mebibyte(peer: Peer, client: Client) -> None:
    client.push_many([batch(60_000, value=n) for n in range(5)])
    assert [len(push.entries) // ENTRY_ROW.size for push in peer.of_type(Push)] == [2, 2, 1]
    assert all(push.length <= 1 << 20 for push in peer.of_type(Push))


def test_push_many_of_nothing_is_nothing(peer: Peer, client: Client) -> None:
    assert client.push_many([]) == []
    assert not peer.of_type(Push)


def test_schema_is_declared_once_a_connection(peer: Peer, client: Client) -> None:
    for _ in range(3):
        client.push({"flights": batch(), "weather": batch()}, topic="travel")
    assert len(peer.of_type(DeclareSchema)) == 2
    client.push({"flights": pa.record_batch({"other": [1]})}, topic="travel")
    assert len(peer.of_type(DeclareSchema)) == 3


def test_item_counts_go_with_their_bundles(peer: Peer, client: Client) -> None:
    client.push_many([batch(), batch(), batch()], item_counts=[4, None, 6])
    assert [stored.entry.item_count for stored in peer.stored] == [4, -1, 6]


def test_ring_smaller_than_what_is_pushed_is_used_again_and_again(peer: Peer, client: Client) -> None:
    receipts = client.push_many(batch(20_000, value=n) for n in range(60))
    assert len(receipts) == 60
    assert ids(peer) == list(range(60))
    assert len(peer.of_type(AttachArena)) == 1


def test_pushes_of_many_threads_share_the_connection(peer: Peer, client: Client) -> None:
    def push_some(thread: int) -> list[int]:
        return [client.push(batch(value=thread * 100 + n)).sequence for n in range(20)]

    threads = [Background(lambda thread=thread: push_some(thread)) for thread in range(6)]  # type: ignore[misc]
    for thread in threads:
        thread.result()
    assert sorted(ids(peer)) == sorted(thread * 100 + n for thread in range(6) for n in range(20))
    for thread_number in range(6):
        own = [found for found in ids(peer) if found // 100 == thread_number]
        assert own == sorted(own), "each thread's bundles stay in order"
    assert len(peer.of_type(Hello)) == 1


def test_waiting_threads_have_their_bundles_under_way_together(peer: Peer, client: Client) -> None:
    peer.holds_acks = True
    threads = [Background(lambda n=n: client.push(batch(value=n))) for n in range(4)]  # type: ignore[misc]
    peer.wait_for(lambda: len(peer.unacknowledged) == 4)
    peer.acknowledge()
    assert len({thread.result() for thread in threads}) == 4


def test_key_decides_the_core(two_cores: Peer) -> None:
    with connect(two_cores.run_dir) as client:
        cores = {key: client.push(batch(), key=key).bundle_id.core for key in map(str, range(32))}
        assert set(cores.values()) == {0, 1}
        assert {key: client.push(batch(), key=key.encode()).bundle_id.core for key in cores} == cores
        assert client.push_many([batch()], key="7")[0].bundle_id.core == cores["7"]


def test_client_without_keys_stays_on_its_core_and_the_next_one_takes_another(two_cores: Peer) -> None:
    with connect(two_cores.run_dir) as first, connect(two_cores.run_dir) as second:
        cores = {first.push(batch()).bundle_id.core for _ in range(4)}
        assert len(cores) == 1
        assert second.push(batch()).bundle_id.core not in cores


# --- large bundles -------------------------------------------------------------------------------------------------------------


def test_bundle_larger_than_the_ring_gets_an_arena_of_its_own_and_the_next_the_usual(
    peer: Peer, client: Client
) -> None:
    large = batch(500_000)
    client.push(batch(value=1))
    client.push(large)
    client.push(batch(value=2))
    client.push(batch(value=3))
    usual, larger, usual_again = (message.size_bytes for message in peer.of_type(AttachArena))
    assert usual == usual_again == 0
    assert larger >= 4_000_000
    assert peer.stored[1].entry.batches[0].equals(large)
    assert ids(peer) == [1, 0, 2, 3]


def test_large_bundles_in_a_row_share_their_arena(peer: Peer, client: Client) -> None:
    client.push_many([batch(500_000), batch(499_000), batch(500_000), batch(1)])
    assert len(peer.of_type(AttachArena)) == 3


def test_first_bundle_may_be_large(peer: Peer, client: Client) -> None:
    client.push(batch(500_000))
    assert len(peer.stored) == 1


def test_large_bundle_waits_for_what_is_under_way(peer: Peer, client: Client) -> None:
    peer.holds_acks = True
    small = Background(lambda: client.push(batch(value=1)))
    peer.wait_for(lambda: len(peer.unacknowledged) == 1)
    large = Background(lambda: client.push(batch(500_000)))
    later = Background(lambda: client.push(batch(value=2)))
    peer.holds_acks = False
    peer.acknowledge()
    for push in (small, large, later):
        push.result()
    assert sorted(ids(peer)) == [0, 1, 2]


def test_large_and_small_bundles_of_many_threads_all_get_through(peer: Peer, client: Client) -> None:
    def push_some(rows: int) -> int:
        return len([client.push(batch(rows)) for _ in range(4)])

    threads = [Background(lambda rows=rows: push_some(rows)) for rows in (3, 400_000, 5, 300_000, 7)]  # type: ignore[misc]
    assert [thread.result() for thread in threads] == [4] * 5
    assert len(peer.stored) == 20


def test_timed_out_large_bundle_does_not_block_the_others(peer: Peer, client: Client) -> None:
    peer.holds_acks = True
    small = Background(lambda: client.push(batch(value=1)))
    peer.wait_for(lambda: len(peer.unacknowledged) == 1)
    with pytest.raises(PushTimeout, match="no room"):
        client.push(batch(500_000), timeout=0.05)
    other = Background(lambda: client.push(batch(value=2)))
    peer.wait_for(lambda: len(peer.unacknowledged) == 2)
    peer.acknowledge()
    small.result()
    other.result()
    assert sorted(ids(peer)) == [1, 2]


def test_refused_arena_is_a_shared_memory_error_and_the_client_goes_on(peer: Peer, client: Client) -> None:
    peer.handlers[AttachArena] = refuse("shared_memory", "no memory left")
    with pytest.raises(SharedMemoryError, match="no memory left"):
        client.push(batch())
    del peer.handlers[AttachArena]
    client.push(batch())


def test_arena_that_is_none_is_a_shared_memory_error(peer: Peer, client: Client, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(bytes(4096))

    def give_a_file(session: PeerSession, message: ClientMessage) -> bool:
        assert isinstance(message, AttachArena)
        with open(tmp_path / "file", "rb") as file:
            session.send_with_descriptors([ArenaAttached(message.tag, 4096)], file.fileno())
        return True

    peer.handlers[AttachArena] = give_a_file
    with pytest.raises(SharedMemoryError, match="arena"):
        client.push(batch())


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


# --- losing the connection --------------------------------------------------------------------------------------------------------


def test_lost_push_is_pushed_again(peer: Peer, client: Client) -> None:
    client.push(batch(value=1))
    peer.holds_acks = True
    push = Background(lambda: client.push(batch(value=2)))
    peer.wait_for(lambda: len(peer.unacknowledged) == 1)
    peer.kill(0)
    peer.holds_acks = False
    peer.unacknowledged.clear()
    peer.listen(0)
    push.result()
    assert ids(peer) == [1, 2, 2]
    assert len(peer.of_type(DeclareSchema)) == 2, "a new connection is told again"


def test_only_what_was_not_acknowledged_is_pushed_again_and_in_order(peer: Peer, client: Client) -> None:
    count, kept = 3 * GROUP_BUNDLES_MAX + 36, 2 * GROUP_BUNDLES_MAX + 10
    peer.holds_acks = True
    pushes = Background(lambda: client.push_many(no_run(count)))
    peer.wait_for(lambda: len(peer.unacknowledged) == 4)
    peer.acknowledge(2)
    session, third = peer.unacknowledged[0]
    session.send(Acked(3, [AckRun(third.tag, 5, 100, 0, 10)]))
    peer.wait_for(lambda: len(peer.stored) == count)
    peer.kill(0)
    peer.holds_acks = False
    peer.unacknowledged.clear()
    peer.listen(0)
    receipts = pushes.result()
    assert isinstance(receipts, Receipts)
    assert len(receipts) == count
    assert ids(peer) == [*range(count), *range(kept, count)]


def test_push_waits_for_a_worker_that_is_away(peer: Peer, client: Client) -> None:
    client.push(batch(value=1))
    peer.kill(0)
    push = Background(lambda: client.push(batch(value=2)))
    assert push.is_running
    peer.listen(0)
    push.result()
    assert ids(peer) == [1, 2]


def test_worker_that_stays_away_is_unavailable_and_the_next_push_goes_elsewhere(two_cores: Peer) -> None:
    with connect(two_cores.run_dir) as client:
        core = client.push(batch()).bundle_id.core
        two_cores.kill(core)
        with pytest.raises(WorkerUnavailable, match=f"worker {core}"):
            client.push(batch(), timeout=0.1)
        assert client.push(batch()).bundle_id.core == 1 - core


def test_node_that_comes_back_with_fewer_workers_is_used_as_it_is(two_cores: Peer) -> None:
    with connect(two_cores.run_dir) as client:
        keys = [str(n) for n in range(16)]
        assert {client.push(batch(), key=key).bundle_id.core for key in keys} == {0, 1}
        two_cores.kill(1)
        write_node_file(two_cores.run_dir, 1)
        assert {client.push(batch(), key=key).bundle_id.core for key in keys} == {0}


def test_client_that_is_the_last_to_hear_of_a_core_without_a_worker_pushes_elsewhere(two_cores: Peer) -> None:
    """Its socket is served by another worker, which takes no bundles for it: pushes were tried there again until their timeout."""

    def refuse_for_core_1(session: PeerSession, message: ClientMessage) -> bool:
        return session.core == 1 and refuse("draining", "core 1 has no worker any more")(session, message)

    with connect(two_cores.run_dir) as client:
        keys = [str(n) for n in range(16)]
        assert {client.push(batch(), key=key).bundle_id.core for key in keys} == {0, 1}
        two_cores.kill(1)
        write_node_file(two_cores.run_dir, 2, adopted=[1])
        two_cores.handlers[Push] = refuse_for_core_1
        two_cores.listen(1)
        assert {client.push(batch(), key=key).bundle_id.core for key in keys} == {0}


def test_more_schemas_than_a_worker_remembers_renew_the_connection(peer: Peer, client: Client) -> None:
    drifting = (pa.record_batch({f"c{n}": [n]}) for n in range(DECLARED_MAX + 10))
    client.push_many(drifting)
    assert len(peer.stored) == DECLARED_MAX + 10
    assert len(peer.of_type(Hello)) == 2


def noted(value: int, size_mib: int = 12) -> pa.RecordBatch:
    """With a schema of that size of its own."""
    return batch(value=value).replace_schema_metadata({f"{value}": "x" * (size_mib << 20)})


def test_longer_schemas_than_a_worker_remembers_renew_the_connection(peer: Peer, client: Client) -> None:
    for value in range(7):
        client.push(noted(value))
    assert ids(peer) == [*range(7)]
    assert len(peer.of_type(Hello)) == 2
    assert (DECLARED_MAX, DECLARED_BYTES_MAX) == (SCHEMAS_MAX, SCHEMA_BYTES_MAX)


def test_a_bundle_with_longer_schemas_than_any_connection_takes_is_refused(peer: Peer, client: Client) -> None:
    client.push(noted(0))
    with pytest.raises(InvalidBundle, match=r"the schemas of one bundle take \d+ bytes .* push its slots in several"):
        client.push({slot: noted(slot) for slot in range(1, 8)})
    client.push(batch(value=9))
    assert ids(peer) == [0, 9]


def test_full_control_socket_does_not_deadlock(peer: Peer, client: Client) -> None:
    """The worker reads no message before all its answers are read, and the client has more to send than sockets hold."""
    peer.arena_bytes = 64 << 20
    wide = {slot: batch(1) for slot in range(64)}
    flood = [Acked(3, []) for _ in range(60_000)]

    def flood_first(session: PeerSession, message: ClientMessage) -> bool:
        del peer.handlers[Push]
        session.send(*flood)
        return False

    peer.handlers[Push] = flood_first
    assert len(client.push_many([wide for _ in range(600)])) == 600


# --- life ----------------------------------------------------------------------------------------------------------------------


def test_closed_client_refuses_and_closes_again(client: Client) -> None:
    client.push(batch())
    client.close()
    client.close()
    for call in (lambda: client.push(batch()), client.flush, lambda: client.subscribe("x"), client.topics):
        with pytest.raises(ClosedError):
            call()


def test_close_ends_a_push_that_waits(peer: Peer, client: Client) -> None:
    peer.holds_acks = True
    push = Background(lambda: client.push(batch()))
    peer.wait_for(lambda: len(peer.unacknowledged) == 1)
    client.close()
    with pytest.raises(ClosedError):
        push.result()


def test_forked_child_pushes_over_connections_of_its_own(peer: Peer, client: Client) -> None:
    client.push(batch(value=1))
    child = os.fork()
    if child == 0:
        status = 1
        try:
            client.push(batch(value=2))
            status = 0
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    client.push(batch(value=3))
    assert sorted(ids(peer)) == [1, 2, 3]
    assert {message.pid for message in peer.of_type(Hello)} == {os.getpid(), child}
    assert len(peer.of_type(Hello)) == 2, "the parent's connection was not disturbed"


def test_fork_while_another_thread_waits_leaves_the_child_usable(peer: Peer, client: Client) -> None:
    peer.holds_acks = True
    waiting = Background(lambda: client.push(batch(value=1)))
    peer.wait_for(lambda: len(peer.unacknowledged) == 1)
    peer.holds_acks = False
    child = os.fork()
    if child == 0:
        status = 1
        try:
            client.push(batch(value=2))
            status = 0
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    peer.acknowledge()
    waiting.result()
    assert sorted(ids(peer)) == [1, 2]


def test_no_descriptor_is_left_open(peer: Peer) -> None:
    def count() -> int:
        return len(os.listdir("/proc/self/fd"))

    with connect(peer.run_dir) as client:
        client.push(batch())
    peer.wait_for(lambda: not peer.sessions)
    gc.collect()  # What other tests left behind in reference cycles.
    before = count()
    for _ in range(3):
        with connect(peer.run_dir) as client:
            client.push(batch())
            client.push(batch(500_000))
            client.topics()
        peer.wait_for(lambda: not peer.sessions)
    assert count() == before


def test_topics_are_those_that_the_worker_lists(client: Client) -> None:
    assert list(client.topics()) == [info.name for info in TOPICS]
    assert client.topics()["travel"].slots == {"flights": 3, "weather": 7}


def test_welcome_may_come_in_pieces(peer: Peer, client: Client) -> None:
    def in_pieces(session: PeerSession, message: ClientMessage) -> bool:
        for byte in encode_frame(Welcome(peer.version, session.core, "00" * 16, 1, TOPICS)):
            session.socket.sendall(bytes([byte]))
        return True

    peer.handlers[Hello] = in_pieces
    client.push(batch())


def test_a_schema_that_is_too_long_is_refused_alone(peer: Peer, client: Client) -> None:
    """Nothing of its bundle is taken for sent, such as the schema of its other slot."""
    long = batch().replace_schema_metadata({"note": "x" * FRAME_BYTES_MAX})
    with pytest.raises(InvalidBundle, match=r"slot 7: the encoded schema has \d+ bytes \(16.* its limit is"):
        client.push({3: batch(value=1), 7: long}, topic="travel")
    client.push({3: batch(value=2)}, topic="travel")
    assert ids(peer) == [2]
