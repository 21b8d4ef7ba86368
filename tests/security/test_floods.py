"""Another user who asks for more than anybody needs: whoever pushes beside it must be served, and the worker must live."""

from __future__ import annotations

import contextlib
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest

from benchmarks.flooding import Flood, requests_of
from quiver_actors.base.protocol import messages as m
from quiver_actors.base.protocol.framing import encode_frame
from quiver_actors.node.worker import figures
from quiver_actors.node.worker.requests import Requests
from quiver_actors.node.worker.session import OWED_MAX, Session, SessionState
from tests.security.guest import AS_ROOT, GUEST_UID, IS_ROOT, as_user, besieged, guest_settings
from tests.unit.node.worker.harness import WireClient, table
from tests.unit.node.worker.test_loop import SteppedWorker

TOPIC = "open"
FLOODS = [("lists", 8), ("lists", 40), ("tiny", 40), ("mixed", 40), ("malformed", 8)]
PUSHES = 12


@contextlib.contextmanager
def flooding(make: Callable[[], Flood]) -> Iterator[Flood]:
    """The flood goes on in a thread until the block ends."""
    with as_user(GUEST_UID, GUEST_UID) if IS_ROOT else contextlib.nullcontext():
        flood = make()
    is_over = threading.Event()

    def go_on() -> None:
        while not is_over.is_set():
            with as_user(GUEST_UID, GUEST_UID) if IS_ROOT else contextlib.nullcontext():
                flood.flood_once()

    thread = threading.Thread(target=go_on)
    thread.start()
    try:
        yield flood
    finally:
        is_over.set()
        thread.join()
        flood.close()


@AS_ROOT
@pytest.mark.parametrize("reads", [True, False], ids=["reads", "never reads"])
@pytest.mark.parametrize(("kind", "connections"), FLOODS)
def test_an_honest_producer_is_served_beside_a_flood(kind: str, connections: int, reads: bool) -> None:
    with besieged(max_connections=connections, max_memory_bytes=64 << 20) as node:
        for name in ["flood", *map(str, range(63))]:
            node.honest.register(name, topic=TOPIC)
        node.check_undisturbed()
        node.honest.flush(TOPIC)
        messages = requests_of(TOPIC)[kind]
        with flooding(lambda: Flood(node.worker.socket_path, messages, connections, reads=reads)) as flood:
            for _ in range(PUSHES):
                node.check_undisturbed()
        assert flood.connected >= connections
        assert kind == "malformed" or not reads or flood.received_bytes, "a flood that nobody answers is none"


# --- turn by turn ----------------------------------------------------------------------------------------------------------


class Stepped:
    """A worker whose turns the test makes, with connections of another user that have all sent more than a turn is worth."""

    def __init__(self, root: Path, **access: int) -> None:
        root.chmod(0o711)
        self.worker = SteppedWorker(root, guest_settings(max_connections=64, **access))
        self.worker.run_dir.chmod(0o711)
        self.connections = self.worker.worker.loop.connections
        self.handled: list[tuple[Session, m.Message]] = []
        self._clients = 0

    def guest(self) -> WireClient:
        with as_user(GUEST_UID, GUEST_UID) if IS_ROOT else contextlib.nullcontext():
            return self.own()

    def own(self) -> WireClient:
        self._clients += 1
        client = self.worker.connect(greet=False)
        client.send(m.Hello(m.PROTOCOL_VERSION, 1, "test"))
        return client

    def step_until_greeted(self) -> None:
        sessions = self.connections.sessions
        while len(sessions) < self._clients or any(
            session.state is SessionState.GREETING for session in sessions.values()
        ):
            self.worker.step()
        self.worker.step()

    def watch(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Note everything that is handled from now on."""
        handle = Requests.handle

        def noting(requests: Requests, session: Session, message: m.Message, now_ns: int) -> None:
            self.handled.append((session, message))
            handle(requests, session, message, now_ns)

        monkeypatch.setattr(Requests, "handle", noting)


@contextlib.contextmanager
def stepped(**access: int) -> Iterator[Stepped]:
    with tempfile.TemporaryDirectory(prefix="qv-sec-") as root:
        made = Stepped(Path(root), **access)
        try:
            yield made
        finally:
            made.worker.close()


@AS_ROOT
def test_a_turn_takes_no_more_of_a_user_than_its_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    # The budget is wall time: on a busy machine the default would end within the owner's 50 requests.
    monkeypatch.setattr("quiver_actors.node.worker.budgets.OWN_TURN_NS", 60_000_000_000)
    with stepped() as node:
        guests = [node.guest() for _ in range(40)]
        owner = node.own()
        node.step_until_greeted()
        # 0.2 ms each: of the budget of a turn there is enough for two.
        for guest in guests:
            guest.send(*[m.FlushProgress(tag, TOPIC, "nobody") for tag in range(50)])
        owner.send(*[m.Pending(tag, TOPIC, "nobody") for tag in range(50)])
        node.watch(monkeypatch)
        turns = []
        for _ in range(20):
            before = len(node.handled)
            node.worker.step()
            turns.append(node.handled[before:])
        assert max(sum(session.guest is not None for session, _ in turn) for turn in turns) <= 2
        assert sum(session.guest is None for session, _ in turns[0]) == 50, "the node's own user is served at once"
        assert [session.guest is None for session, _ in turns[0]][:50] == [True] * 50, "and first"
        served = {session for turn in turns for session, _ in turn if session.guest is not None}
        assert len(served) > 1, "a user's connections take turns"


def test_a_request_with_many_parts_is_carried_out_in_several_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever lists a thousand subscribers holds nobody up, and no later request of the same connection goes before."""
    monkeypatch.setattr("quiver_actors.node.worker.budgets.OWN_TURN_NS", 1)
    with stepped() as node:
        client = node.own()
        node.step_until_greeted()
        names = [f"s{number}" for number in range(5)]
        client.send(*[m.Register(1, TOPIC, name, "latest") for name in names])
        client.send(m.ListSubscribers(2, TOPIC), m.Pending(3, TOPIC, "nobody"))
        node.watch(monkeypatch)
        before_the_list = 0
        while not any(isinstance(message, m.Pending) for _, message in node.handled):
            node.worker.step()
            (session,) = node.connections.sessions.values()
            before_the_list += session.work is not None
        assert before_the_list >= len(names) - 1
        client.socket.settimeout(1)
        listed = client.expect(m.SubscriberList)
        assert [info.subscriber for info in listed.subscribers] == names


def test_the_heart_beats_between_the_portions_of_a_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Eight connections with costly requests got a worker killed as hung."""
    monkeypatch.setattr("quiver_actors.node.worker.budgets.OWN_TURN_NS", 1)
    monkeypatch.setattr(figures, "PUBLISH_INTERVAL_NS", 0)
    with stepped() as node:
        clients = [node.own() for _ in range(8)]
        node.step_until_greeted()
        beats: list[int] = []
        handle = Requests.handle

        def noting(requests: Requests, session: Session, message: m.Message, now_ns: int) -> None:
            beats.append(node.worker.region().heartbeat_ns)
            handle(requests, session, message, now_ns)
            assert node.worker.region().heartbeat_ns == beats[-1], "within a request nothing beats: it may hang"

        monkeypatch.setattr(Requests, "handle", noting)
        for client in clients:
            client.send(m.Pending(1, TOPIC, "nobody"))
        node.worker.step()
        assert len(beats) == len(clients)
        assert len(set(beats)) == len(beats)


def test_a_connection_to_which_many_answers_are_owed_is_not_read_from() -> None:
    """What waits for the disk takes memory, and nothing of it is in the socket."""
    with stepped() as node:
        client = node.own()
        client.send(m.Register(1, TOPIC, "s", "latest"))
        node.step_until_greeted()
        (session,) = node.connections.sessions.values()
        frame = encode_frame(m.FlushProgress(2, TOPIC, "s"))
        client.socket.sendall(frame * 100)
        for _ in range(1000):
            # The thread that writes progress may answer what was asked before, which is then owed no longer.
            session.owed = OWED_MAX
            node.worker.step()
            if session in node.connections.paused:
                break
        assert session.owed <= OWED_MAX + 1
        assert session in node.connections.paused
        session.owed = 0
        assert _is_answered(node, client), "it is read again"


def _is_answered(node: Stepped, client: WireClient) -> bool:
    client.socket.settimeout(0.01)
    for _ in range(1000):
        node.worker.step()
        with contextlib.suppress(TimeoutError):
            message = client.receive()
            assert message is not None
            if isinstance(message, m.Done) and message.tag == 2:
                return True
    return False


@AS_ROOT
def test_memory_of_one_users_connections_is_limited() -> None:
    """Frames that never end, on many connections."""
    with stepped(max_memory_bytes=1 << 20) as node:
        guests = [node.guest() for _ in range(8)]
        node.step_until_greeted()
        for guest in guests:
            guest.socket.setblocking(False)
            guest.socket.send((400_000).to_bytes(4, "little") + bytes(100_000))
        for _ in range(200):
            node.worker.step()
        sessions = node.connections.sessions.values()
        assert 0 < len(sessions) < len(guests)
        assert sum(session.memory_bytes for session in sessions) <= 1 << 20


@AS_ROOT
def test_an_arena_that_another_user_keeps_takes_no_memory() -> None:
    with besieged() as node:
        guest = node.guest()
        guest.attach_arena(1 << 20)
        kept = guest.arena
        assert kept is not None
        kept.ring[:4] = b"kept"
        guest.arena = None
        guest.attach_arena(1 << 20)
        assert bytes(kept.ring[:4]) == bytes(4)
        kept.close()


@AS_ROOT
def test_there_is_always_room_for_the_own_user(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("quiver_actors.node.worker.connections.GUEST_SESSIONS_MAX", 3)
    with besieged() as node:
        for _ in range(2):
            node.guest()
        with pytest.raises(AssertionError, match="takes no more of other users"):
            node.guest()
        with node.worker.connect() as own:
            own.send(m.ListTopics(1))
            own.expect(m.TopicList)


def test_longer_lists_than_a_segment_has_bundles_end_the_connection() -> None:
    with besieged() as node:
        guest = node.guest()
        guest.register("s", topic=TOPIC)
        resolve = m.Resolve(7, TOPIC, "s", 0, 1, "ack", bytes(4 * 65_536))
        for message in (resolve, msgspec.structs.replace(resolve, outcome="defer")):
            client = node.guest()
            client.send(message)
            assert client.expect(m.Refused).code == "protocol"
        node.honest.push_and_wait(table(1), topic=TOPIC)
