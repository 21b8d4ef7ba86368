"""Another user of a simulated node: it asks for more than anybody needs, for what is not its own, and says what makes no sense.

The model knows nothing of it: whatever it does, the others must get what they are owed, and every promise holds. Its sockets have a name,
by which simulated workers know it from their own user (`workers.peer_of`).
"""

from __future__ import annotations

import contextlib
import os
import socket

from quiver_actors.base.protocol import messages as m
from quiver_actors.base.protocol.framing import encode_frame
from quiver_actors.base.protocol.terms import Terms
from tests.sim.node.actors import Place, World
from tests.sim.node.looking import incarnation_of
from tests.sim.node.machine import Machine
from tests.sim.node.message_kills import MessageKills
from tests.sim.node.room import GUEST_UID, TOPIC

_CONNECTIONS_MAX = 4
_FRAMES_MAX = 40
_VICTIMS = ("ann", "ben")
_DESTROYING_TERMS = (
    Terms(orphan_ttl_ns=1),
    Terms(lease_ns=1, max_deliveries=1, exhausted="drop"),
    Terms(max_deliveries=1, dead_letter_topic=TOPIC),
)
"""Terms by which whoever may set them ends the subscriber, or each of its bundles after one delivery."""
_GARBAGE = b"\x07\0\0\0garbage"


def guest_connection(machine: Machine, core: int, name: str) -> socket.socket | None:
    """A connection to a worker under another user's id, which has said its greeting; None if nobody is there."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connection.setblocking(False)
    try:
        # The kernel chooses a name.
        connection.bind("")
        connection.connect(os.path.join(machine.run_dir, f"core_{core}.sock"))
        connection.send(encode_frame(m.Hello(m.PROTOCOL_VERSION, os.getpid(), name)))
    except OSError:
        connection.close()
        return None
    return connection


class FloodingGuest:
    """A hostile client under another user id."""

    def __init__(self, name: str, world: World, place: Place) -> None:
        self.name = name
        self.message_kills = MessageKills(self.cut)
        self._world = world
        self._topic = place.topic
        self._place = place
        self._connections: list[socket.socket] = []

    @property
    def is_idle(self) -> bool:
        return not self._connections

    def step(self) -> None:
        random = self._world.random
        if self._world.is_resting:
            self.close()
        elif len(self._connections) < _CONNECTIONS_MAX and random.random() < 0.2:
            self._connect()
        elif self._connections:
            connection = random.choice(self._connections)
            try:
                self._use(connection)
            except BlockingIOError:
                # It is full, or nothing has arrived.
                return
            except OSError:
                self._drop(connection)

    def cut(self) -> None:
        for connection in self._connections:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def die(self) -> None:
        self.close()

    def close(self) -> None:
        for connection in list(self._connections):
            self._drop(connection)

    def _connect(self) -> None:
        machine = self._world.machine
        connection = guest_connection(machine, self._world.random.randrange(machine.settings.cores), self.name)
        if connection is not None:
            self._connections.append(connection)

    def _drop(self, connection: socket.socket) -> None:
        self._connections.remove(connection)
        connection.close()

    def _use(self, connection: socket.socket) -> None:
        chance = self._world.random.random()
        if chance < 0.3:
            if not connection.recv(1 << 16):
                self._drop(connection)
        elif chance < 0.33:
            self._drop(connection)
        elif chance < 0.35:
            connection.send(_GARBAGE)
        else:
            frames = [encode_frame(self._request()) for _ in range(self._world.random.randint(1, _FRAMES_MAX))]
            self._world.machine.counts["guest_requests"] += len(frames)
            # A part of it may be left out: then what follows makes no sense either.
            connection.send(b"".join(frames))

    def _against_transactions(self) -> list[m.Message]:
        """Requests that would end somebody's transaction, or publish what is not committed."""
        random, topic = self._world.random, self._topic
        txn_ids = [*self._place.model.transactions]
        txn_id, numbers = random.choice(txn_ids) if txn_ids else "t", [random.randrange(40)]
        incarnation = incarnation_of(self._world.machine, random.randrange(self._world.machine.settings.cores))
        return [
            m.Decide(1, txn_id, 0, "abort"),
            m.DropStages(1, topic, incarnation, numbers),
            m.PublishStages(1, topic, txn_id, incarnation, numbers, True),
            m.AbandonStage(topic, numbers[0]),
        ]

    def _request(self) -> m.Message:
        random, topic = self._world.random, self._topic
        victim, seq, index = random.choice(_VICTIMS), random.randrange(20), random.randrange(8)
        requests: list[m.Message] = [
            m.ListSubscribers(1, topic),
            m.ListSegments(1, topic),
            m.ListTopics(1),
            m.OpenSegment(1, topic, seq),
            m.BundleTime(1, topic, seq, index),
            m.Pending(1, topic, victim),
            m.Credit(topic, victim, 1 << 40),
            m.Register(1, topic, victim, "earliest"),
            m.Unregister(1, topic, victim),
            m.Seek(1, topic, victim, "latest"),
            m.AckThrough(1, topic, victim, seq, index),
            m.GapAck(1, topic, victim, index),
            m.Resolve(1, topic, victim, seq, random.randrange(50), "ack", bytes([index, 0, 0, 0])),
            m.Unreadable(1, topic, victim, seq, random.randrange(50), bytes([index, 0, 0, 0]), "it says so"),
            m.ClaimRef(1, topic, victim, seq, index),
            m.FlushProgress(1, topic, victim),
            m.Push(1, topic, 64 * index, 64, 64 * seq, b"", b"", b""),
            m.ListStages(1, topic),
            m.Register(1, topic, victim, "latest", random.choice(_DESTROYING_TERMS)),
            m.ShareSubscriber(1, topic, victim, [GUEST_UID]),
            *self._against_transactions(),
        ]
        return random.choice(requests)
