"""Another user of a simulated node who opens every segment that it finds, sealed or not, and keeps the descriptors as long as it lives.

It keeps them over kills of workers and of the supervisor, and into the calm. What it has of deleted segments is on the disk
(`SimDisk.give`), so workers must count it in every step (`uncounted`), within the size cap, and have taken it back when all the
others are gone (`Run._check_nothing_is_held`).
"""

from __future__ import annotations

import contextlib
import os
import socket

from quiver_actors.base.protocol import messages as m
from quiver_actors.base.protocol.framing import encode_frame
from quiver_actors.store.engine import Engine
from quiver_actors.store.files.paths import segment_seq_of
from tests.sim.node.actors import Place, World
from tests.sim.node.guests import guest_connection
from tests.sim.node.looking import give
from tests.sim.node.machine import Machine
from tests.sim.node.message_kills import MessageKills

_FILES_MAX = 24
_DESCRIPTORS_MAX = 8
"""Descriptors that come with one message at most."""


class HoardingGuest:
    """A client under another user id that lets go of little."""

    def __init__(self, name: str, world: World, place: Place) -> None:
        self.name = name
        self.message_kills = MessageKills(self.cut)
        self._world = world
        self._topic = place.topic
        self._core = 0
        self._connection: socket.socket | None = None
        self._kept: list[tuple[int, set[object], object]] = []
        """Descriptors, each with those who have its file, and what stands for this one among them."""

    @property
    def is_idle(self) -> bool:
        return True

    def step(self) -> None:
        if self._world.is_resting:
            return
        random = self._world.random
        if self._kept and (len(self._kept) >= _FILES_MAX or random.random() < 0.02):
            self._let_go(self._kept.pop(random.randrange(len(self._kept))))
        elif self._connection is None:
            self._core = random.randrange(self._world.machine.settings.cores)
            self._connection = guest_connection(self._world.machine, self._core, self.name)
        else:
            try:
                self._use(self._connection)
            except BlockingIOError:
                return
            except OSError:
                self._drop()

    def cut(self) -> None:
        if self._connection is not None:
            with contextlib.suppress(OSError):
                self._connection.shutdown(socket.SHUT_RDWR)

    def die(self) -> None:
        self.close()

    def close(self) -> None:
        self._drop()
        while self._kept:
            self._let_go(self._kept.pop())

    def leave(self) -> None:
        """End the connection, and keep the descriptors."""
        self._drop()

    def _drop(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def _use(self, connection: socket.socket) -> None:
        if self._world.random.random() < 0.5:
            self._ask(connection)
            return
        data, descriptors, _, _ = socket.recv_fds(connection, 1 << 16, _DESCRIPTORS_MAX)
        for descriptor in descriptors:
            self._keep(descriptor)
        if not data:
            self._drop()

    def _ask(self, connection: socket.socket) -> None:
        disk = self._world.machine.disks[self._core]
        names = disk.list_directory(f"{self._topic}/core_{self._core}/segments")
        found = [segment_seq for name in names if (segment_seq := segment_seq_of(name)) is not None]
        # The number behind the last one may be that of an open log, whose places are asked for too.
        segment_seq = self._world.random.choice([*found, max(found, default=-1) + 1])
        connection.send(encode_frame(m.OpenSegment(1, self._topic, segment_seq, 0, 1)))

    def _keep(self, descriptor: int) -> None:
        one = object()
        having = give(self._world.machine, descriptor, one)
        if having is None:
            # It was deleted while the descriptor was on its way, or is of a life of the machine that is over.
            os.close(descriptor)
        else:
            self._world.machine.counts["hoarded"] += 1
            self._kept.append((descriptor, having, one))

    @staticmethod
    def _let_go(kept: tuple[int, set[object], object]) -> None:
        descriptor, having, one = kept
        having.discard(one)
        os.close(descriptor)


def uncounted(machine: Machine) -> list[str]:
    """Where a worker says that its engines use less than guests keep of deleted segments there.

    A disk that has failed a call may have refused such a segment its second name.
    """
    found = []
    for core, worker in enumerate(machine.workers):
        if worker is None or not hasattr(worker, "loop") or worker.loop._adoption.unopened:
            continue
        engines = [host.engine for host in worker.loop._hosts.values()]
        served = machine.served_by(core)
        if machine.faults.failing_cores.intersection(served) or not all(engine._work.is_idle for engine in engines):
            continue
        hoarded = sum(machine.disks[each].hoarded_bytes() for each in served)
        counted = sum(engine.disk_account.used_bytes - _without_held(engine) for engine in engines)
        if counted < hoarded:
            found.append(f"core_{core} counts {counted} bytes of deleted segments, guests keep {hoarded}")
    return found


def _without_held(engine: Engine) -> int:
    use = engine.disk_account.disk_use()
    return use.total_bytes - use.held_bytes
