"""Pushes over a connection that is lost, and over a client that is closed or forked."""

import gc
import os

import pyarrow as pa
import pytest

from quiver_actors.base.protocol.framing import encode_frame
from quiver_actors.base.protocol.messages import (
    FRAME_BYTES_MAX,
    Acked,
    AckRun,
    ClientMessage,
    DeclareSchema,
    Hello,
    Push,
    Welcome,
)
from quiver_actors.client import Client, connect
from quiver_actors.client.grouping import GROUP_BUNDLES_MAX
from quiver_actors.client.push_channel import DECLARED_BYTES_MAX, DECLARED_MAX
from quiver_actors.client.receipts import Receipts
from quiver_actors.errors import (
    ClosedError,
    InvalidBundle,
    WorkerUnavailable,
)
from quiver_actors.node.worker.session import SCHEMA_BYTES_MAX, SCHEMAS_MAX
from tests.unit.client.peer import TOPICS, Background, Peer, PeerSession, refuse, write_node_file
from tests.unit.client.test_push import batch, ids, no_run

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
    """Return a batch with a schema of that size of its own."""
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
