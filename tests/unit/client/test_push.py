from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from quiver_actors.base.model import BundleId, Durability
from quiver_actors.base.protocol.messages import (
    ENTRY_ROW,
    ArenaAttached,
    AttachArena,
    ClientMessage,
    DeclareSchema,
    Hello,
    Push,
)
from quiver_actors.client import Client, connect
from quiver_actors.errors import (
    PushTimeout,
    SharedMemoryError,
)
from tests.unit.client.peer import Background, Peer, PeerSession, refuse


def batch(rows: int = 3, value: int = 0) -> pa.RecordBatch:
    return pa.record_batch({"id": pa.array(np.arange(value, value + rows, dtype=np.int64))})


def no_run(count: int) -> list[dict[int, pa.RecordBatch]]:
    """Consecutive bundles in different slots, so that a message holds `GROUP_BUNDLES_MAX` of them."""
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
