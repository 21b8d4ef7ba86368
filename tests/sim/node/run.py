"""One run: a seeded scheduler that lets one actor after the other do one thing, and breaks things.

Who acts: the supervisor (decisions, coordinator of the size cap, owner of the topics), workers and their threads, producers, an
idempotent producer, one with transactions, subscribers of two topics, an operator who creates and deletes one of these topics.

What breaks (`Run._faults`): a worker is killed at once, at one of its next calls on the disk, or right before or after one that takes or
sends a message; clients die so too; power is lost in every mode of `disk.crashes`, or the supervisor is killed with its workers, at once
or at one of its next calls on the disk, and in some seeds there are more or fewer workers afterwards, which adopt the directories of those
that are gone; bits of sealed segments rot while a worker is gone; calls on the disk fail; the disk is full; connections break; messages are
late and overtake those of other connections; somebody is slow; memory for arenas is refused; the wall clock jumps; time passes. Half of
all seeds have a size cap, with one of the three policies.

What must hold: `model` after every step that learns something; after every step grants within the cap and disks within it but for one
log a core (`Run._check_cap`); at the end `Run._rest`: everything comes to rest within `REST_ROUNDS_MAX` rounds, transactions and topics
included; `Run._check_nothing_is_held`: no session, arena or claim is left when the clients are gone; `Run._stop`: a node that is told to
stop seals what it has and ends well; `run_seed`: no descriptor is left.
"""

from __future__ import annotations

import contextlib
import errno
import gc
import itertools
import os
import traceback
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from random import Random
from typing import Any

from quiver_actors.disk.crashes import CrashMode
from quiver_actors.disk.faulty import SimulatedCrash
from quiver_actors.model import DEFAULT_TOPIC
from quiver_actors.supervisor.exitcodes import ChildExit
from quiver_actors.supervisor.figures import NO_LIMIT
from quiver_actors.units import KIB, MILLISECOND_NS, SECOND_NS
from tests.sim.node.actors import (
    Actor,
    NumberedActor,
    Place,
    ProducerActor,
    SubscriberActor,
    TopicActor,
    TransactionActor,
    World,
)
from tests.sim.node.machine import POWER_LOSSES, Machine
from tests.sim.node.model import Violation
from tests.sim.node.room import CORES_MAX, TIGHT_BYTES, Room
from tests.sim.node.simulated_time import SimulatedTime

REST_ROUNDS_MAX = 5_000
"""Rounds, in each of which everybody does something, in which everything must have come to rest once nothing breaks any more."""
_CORES = 2
_CORES_CHANGE_SHARE = 0.2
"""Of seeds with room for it, those in which the number of workers changes."""
_SIDE = "side"
_OVERSHOOT_BYTES = 64 * KIB
"""Of each core: the tail of a seal, and small files between two of their measurements."""
_FAULT_SHARE = 0.01
_REST_PAUSE_NS, _IDLE_PAUSE_NS = 2 * MILLISECOND_NS, 50 * MILLISECOND_NS
"""Time that passes in a round of the calm; more of it where only a timer is waited for."""
_QUICK_ROUNDS = 400
"""What takes more of them waits for a timer, such as the next attempt to rescue a segment for which there was no room."""
_STOP_ROUNDS_MAX = 500
_GONE_ROUNDS_MAX = 200
"""Rounds in which workers must have noticed that all clients are gone."""

_Choices = tuple[Sequence[Callable[[], None]], list[int]]
"""What may happen, and the weights of that and of all before it."""


class Run:
    """See the module. `without`: numbers of faults and names of actors that are left out, to find those that matter."""

    def __init__(self, time: SimulatedTime, seed: int, steps: int, without: Collection[int | str] = ()) -> None:
        self.time = time
        self.random = Random(seed)
        self.steps = steps
        self.without = without
        self.faults = 0
        self.step_number = 0
        self.machine = Machine(time, Random(seed + 1), _CORES, _room(Random(seed + 2)))
        self._changes_cores = self.machine.room.is_wide and Random(seed + 3).random() < _CORES_CHANGE_SHARE
        self.world = World(self.machine, self.random)
        self.place, self.side = Place(DEFAULT_TOPIC, is_there=True), Place(_SIDE, is_there=False)
        side_producer = ProducerActor("s", self.world, self.side)
        if self.machine.room.is_tight:
            # A topic that is made at run time has larger segments than such a cap has room for.
            self.without = {*without, "operator"}
        if self._changes_cores:
            # Where it pushes follows from the number of workers: what it repeats across a change is stored again, as documented.
            self.without = {*self.without, "n"}
        pushers: list[Actor] = [
            *(ProducerActor(name, self.world, self.place) for name in ("p", "q")),
            NumberedActor("n", self.world, self.place),
            TransactionActor("t", self.world, self.place),
            side_producer,
        ]
        self.subscribers = [SubscriberActor(name, self.world, self.place) for name in ("ann", "ben")]
        self.subscribers.append(SubscriberActor("sid", self.world, self.side))
        self.operator = TopicActor("operator", self.world, self.side, [side_producer])
        self.pushers = [actor for actor in pushers if actor.name not in self.without]
        self.subscribers = [actor for actor in self.subscribers if actor.name not in self.without]
        self._slow: dict[str, int] = {}
        """Until which step."""
        for left_out in {*pushers} - {*self.pushers}:
            left_out.close()

    @property
    def clients(self) -> list[Actor]:
        return [*self.pushers, *self.subscribers]

    @property
    def actors(self) -> list[str]:
        """Names of those that can be left out."""
        return [*(actor.name for actor in self.clients), self.operator.name]

    def counted(self) -> Counter[str]:
        """What has happened, to be added up: so that it can be seen that there was something to be found."""
        found = Counter(self.machine.counts)
        for model in (*self.place.models, *self.side.models):
            found.update(model.counted())
        found["topics"] += len(self.side.models) - 1
        return found

    def go(self) -> None:
        """Everything: the storm, the calm, the last look."""
        try:
            ordinary, faults = self._ordinary(), self._faults()
            for number in range(self.steps):
                self.step_number = number
                self._do(ordinary if self.random.random() >= _FAULT_SHARE else faults)
                self._check_cap()
            self._rest()
            self._check_nothing_is_held()
            self._stop()
        finally:
            self._close()

    def _do(self, choices: _Choices) -> None:
        functions, weights = choices
        self.random.choices(functions, cum_weights=weights)[0]()

    # --- what goes on ------------------------------------------------------------------------------------------------------

    def _ordinary(self) -> _Choices:
        # A transaction needs many turns before a connection is lost.
        pushers = [*self.pushers, *(actor for actor in self.pushers if isinstance(actor, TransactionActor))]
        return _choices(
            (lambda: self._worker_step(self._core()), 30),
            (lambda: self._job_step(self._core()), 22),
            (lambda: self._client_step(pushers), 26),
            (lambda: self._client_step(self.subscribers), 22),
            (self._operator_step, 1),
            (self._supervisor_step, 4),
            (lambda: self.time.advance(self.random.choice((10_000, 200_000, MILLISECOND_NS, 5 * MILLISECOND_NS))), 10),
        )

    def _core(self) -> int:
        return self.random.randrange(self.machine.settings.cores)

    def _worker_step(self, core: int) -> None:
        if not self._is_slow(f"core_{core}"):
            self.machine.step_worker(core)

    def _job_step(self, core: int) -> None:
        if not self._is_slow(f"threads of core_{core}"):
            for _ in range(self.random.randint(1, 3)):
                self.machine.step_job(core)

    def _client_step(self, actors: list[Any]) -> None:
        actor = self.random.choice(actors) if actors else None
        if actor is not None and not self._is_slow(actor.name):
            for _ in range(self.random.randint(1, 4)):
                self._step_client(actor)

    def _step_client(self, actor: Actor) -> None:
        try:
            with actor.message_kills.watching():
                actor.step()
        except SimulatedCrash as crash:
            self.machine.log.append(f"{actor.name} dies {crash}")
            self.machine.counts["clients_die_at_messages"] += 1
            actor.die()

    def _operator_step(self) -> None:
        if self.operator.name not in self.without:
            self._as_supervisor(self.operator.step)

    def _supervisor_step(self) -> None:
        if not self._is_slow("supervisor"):
            self._as_supervisor(self.machine.step_supervisor)

    def _as_supervisor(self, step: Callable[[], None]) -> None:
        """Do something that it does, which may die in the middle of it, and its workers with it."""
        try:
            step()
        except SimulatedCrash as crash:
            self.machine.log.append(f"the supervisor dies at {crash}")
            self.machine.counts["supervisor_dies_at_effects"] += 1
            self.machine.lose_power(CrashMode.KEEP, 0, self.machine.settings.cores)
            self.operator.look()

    def _is_slow(self, name: str) -> bool:
        return self.step_number < self._slow.get(name, 0)

    # --- what breaks -------------------------------------------------------------------------------------------------------

    def _faults(self) -> _Choices:
        random, machine, core = self.random, self.machine, self._core

        def client() -> Actor:
            return random.choice(self.clients)

        # There may be none: all left out, to find those that matter in a failure.
        of_clients = [
            (lambda: _bind(self._cut, client()), 9),
            (lambda: _bind(self._end_life, client()), 6),
            (lambda: _bind(self._arm_client, client(), random.randint(1, 20), random.random() < 0.5), 6),
        ]
        losses = (*POWER_LOSSES, CrashMode.KEEP)
        found: list[tuple[Callable[[], Callable[[], None]], int]] = [
            (lambda: _bind(machine.kill, core()), 6),
            (lambda: _bind(machine.arm_kill, core(), random.randint(1, 12)), 10),
            (lambda: _bind(machine.arm_kill_at_message, core(), random.randint(1, 20), random.random() < 0.5), 6),
            (
                lambda: _bind(machine.lose_power, random.choice(losses), random.randrange(1 << 30), self._cores()),
                16 if self._changes_cores else 4,
            ),
            (lambda: _bind(machine.arm_supervisor_kill, random.randint(1, 6)), 4),
            (lambda: _bind(machine.rot, core(), random.randrange(1 << 30)), 6),
            (lambda: _bind(machine.arm_error, core(), *self._disk_error()), 4),
            (lambda: _bind(machine.limit_disk, core(), random.choice((None, None, 0, 20_000, 200_000))), 4),
            (lambda: _bind(machine.refuse_memory, core(), random.randint(1, 3)), 2),
            (lambda: _bind(machine.delay_messages, random.choice((0.0, 0.0, 0.3, 0.7))), 3),
            (lambda: _bind(self._be_slow, self._somebody(), random.choice((20, 100, 300))), 3),
            *(of_clients if self.clients else ()),
            (lambda: _bind(self._jump, random.choice((-1, 1)) * random.choice((SECOND_NS, 3600 * SECOND_NS))), 2),
            (lambda: _bind(self.time.advance, random.choice((SECOND_NS, 40 * SECOND_NS))), 2),
        ]
        return _choices(*((lambda make=make: self._strike(make()), weight) for make, weight in found))

    def _strike(self, fault: Callable[[], None]) -> None:
        self.faults += 1
        if self.faults not in self.without:
            self.machine.log.append(f"fault {self.faults}, step {self.step_number}:")
            self.machine.counts["faults"] += 1
            fault()

    def _cores(self) -> int:
        """How many workers there are after the next start."""
        return self.random.randint(1, CORES_MAX) if self._changes_cores else _CORES

    def _disk_error(self) -> tuple[str, int, int]:
        kind = self.random.choice(
            ("write", "fdatasync", "fsync", "rename", "allocate", "read", "unlink", "sync_directory")
        )
        return kind, self.random.randint(1, 4), self.random.choice((errno.EIO, errno.ENOSPC))

    def _somebody(self) -> str:
        processes = [f"core_{core}" for core in range(self.machine.settings.cores)]
        threads = [f"threads of {name}" for name in processes]
        names = [*processes, *threads, "supervisor", *(actor.name for actor in self.clients)]
        return self.random.choice(names)

    def _be_slow(self, name: str, steps: int) -> None:
        self.machine.log.append(f"{name} does nothing for {steps} steps")
        self._slow[name] = self.step_number + steps

    def _cut(self, actor: Actor) -> None:
        self.machine.log.append(f"connections of {actor.name} break")
        actor.cut()

    def _end_life(self, actor: Actor) -> None:
        self.machine.log.append(f"{actor.name} dies")
        actor.die()

    def _arm_client(self, actor: Actor, calls: int, after: bool) -> None:
        self.machine.log.append(f"arm kill of {actor.name} in {calls} messages")
        actor.message_kills.arm(calls, after=after)

    def _jump(self, duration_ns: int) -> None:
        self.machine.log.append(f"the wall clock jumps by {duration_ns // SECOND_NS} s")
        self.time.unix_offset_ns += duration_ns

    # --- what must hold after every step -----------------------------------------------------------------------------------

    def _check_cap(self) -> None:
        cap_bytes = self.machine.room.cap_bytes
        if not cap_bytes:
            return
        granted = self.machine.granted_bytes
        if sum(granted) > cap_bytes and NO_LIMIT not in granted:
            raise Violation(f"grants of {granted} bytes are more than the cap of {cap_bytes}")
        used = [disk.used_bytes for disk in self.machine.disks]
        if sum(used) > cap_bytes + len(used) * _OVERSHOOT_BYTES:
            raise Violation(f"{used} bytes are on the disks, the cap is {cap_bytes}")

    # --- the calm ----------------------------------------------------------------------------------------------------------

    def _rest(self) -> None:
        """Nothing breaks any more: everything must come to its end."""
        self.machine.heal()
        for actor in self.clients:
            actor.message_kills.arm(0, after=False)
        self._slow.clear()
        self.world.is_resting = True
        # Prepared stages wait for their time on the wall clock, which may have jumped back.
        self.time.advance(10 * 3600 * SECOND_NS)
        pause_ns = _REST_PAUSE_NS
        for number in range(REST_ROUNDS_MAX):
            self._round(pause_ns)
            self._check_cap()
            if number % 5 == 4:
                if self._is_at_rest():
                    return
                is_quick = number < _QUICK_ROUNDS and self._is_busy()
                pause_ns = _REST_PAUSE_NS if is_quick else _IDLE_PAUSE_NS
        raise Violation(f"not at rest after {REST_ROUNDS_MAX} rounds: {self._unrest()}")

    def _round(self, pause_ns: int) -> None:
        self._processes_round(pause_ns)
        for actor in self.clients:
            for _ in range(3 if isinstance(actor, SubscriberActor) else 1):
                actor.step()
        self._operator_step()

    def _processes_round(self, pause_ns: int = _REST_PAUSE_NS) -> None:
        self.machine.step_supervisor()
        for core in range(self.machine.settings.cores):
            self.machine.step_worker(core)
            for _ in range(3):
                self.machine.step_job(core)
        self.time.advance(pause_ns)

    def _is_at_rest(self) -> bool:
        return not self._is_busy() and not any(self.machine.staged()) and not self._left_over()

    def _is_busy(self) -> bool:
        """Somebody has something to do that no time needs to pass for."""
        return (
            not all(actor.is_idle for actor in self.clients)
            or not self.operator.is_idle
            or any(self._missing().values())
            or any(self._torn().values())
        )

    def _left_over(self) -> list[int]:
        """Of a topic without one of its subscribers nobody knows whether it is owed something: its directories stay."""
        return [] if {"ann", "ben", "sid"} & {*self.without} else self.machine.left_over()

    def _missing(self) -> dict[str, list[Any]]:
        return {each.name: each.model.missing(each.name)[:5] for each in self.subscribers if each.place.is_there}

    def _torn(self) -> dict[str, list[str]]:
        return {each.name: each.model.torn(each.name)[:5] for each in self.subscribers if each.place.is_there}

    def _unrest(self) -> str:
        actors: list[Actor | TopicActor] = [*self.clients, self.operator]
        busy = [actor.name for actor in actors if not actor.is_idle]
        return f"busy {busy}, missing {self._missing()}, torn {self._torn()}, staged {self.machine.staged()}, adopted {self._left_over()}"

    def _check_nothing_is_held(self) -> None:
        """All clients die: within a few rounds no worker has a session, an arena or a claim of theirs."""
        for actor in self.clients:
            actor.die()
            actor.close()
        for _ in range(_GONE_ROUNDS_MAX):
            self._processes_round()
            if not any(self.machine.held()):
                return
        raise Violation(f"held for clients that are gone: {self.machine.held()}")

    def _stop(self) -> None:
        """The node is told to stop: within a few rounds every worker has sealed what it has and ended well."""
        self.machine.request_stop()
        for _ in range(_STOP_ROUNDS_MAX):
            self._processes_round()
            if self.machine.has_stopped:
                break
        else:
            raise Violation(f"the node has not stopped after {_STOP_ROUNDS_MAX} rounds")
        if set(exits := self.machine.exits()) != {int(ChildExit.DRAINED) << 8}:
            raise Violation(f"workers that were told to stop have ended with {exits}")

    def _close(self) -> None:
        for actor in self.clients:
            actor.close()
        self.machine.close()


def _room(random: Random) -> Room:
    if random.random() < 0.5:
        return Room()
    cap_bytes = random.choice((144, 160, 200, TIGHT_BYTES // KIB, 1500, 6000)) * KIB
    return Room(cap_bytes, random.choices(("backpressure", "drop_oldest", "reject"), (4, 4, 2))[0])


def run_seed(
    time: SimulatedTime,
    seed: int,
    steps: int,
    without: Collection[int | str] = (),
    counts: Counter[str] | None = None,
) -> list[str]:
    """One run; nothing of it may be left when it is over. What happened in it is added to `counts`.

    Returns:
        What happened.

    Raises:
        RunFailed: a promise was broken, or the product let something escape.
    """
    before = open_descriptors()
    run = Run(time, seed, steps, without)
    _go(run)
    log, faults, actors = run.machine.log, run.faults, run.actors
    if counts is not None:
        counts.update(run.counted())
    del run
    if open_descriptors() - before:
        gc.collect()
    if left := open_descriptors() - before:
        raise RunFailed(log, faults, actors, f"descriptors are left open: {sorted(left)}")
    return log


def _go(run: Run) -> None:
    try:
        run.go()
    except Exception as error:
        raise RunFailed(run.machine.log, run.faults, run.actors, traceback.format_exc()) from error


class RunFailed(Exception):
    """A run that broke a promise: its log, how many faults and which actors it had, and what was found."""

    def __init__(self, log: list[str], faults: int, actors: list[str], reason: str) -> None:
        super().__init__(reason)
        self.log = log
        self.faults = faults
        self.actors = actors
        self.reason = reason


def open_descriptors() -> set[str]:
    """What this process has open, without what only the looking needs."""
    found = set()
    for number in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):
            found.add(f"{number} {os.readlink(f'/proc/self/fd/{number}')}")
    return {each for each in found if "/proc/" not in each}


def _choices(*choices: tuple[Callable[[], None], int]) -> _Choices:
    functions, weights = zip(*choices, strict=True)
    return functions, list(itertools.accumulate(weights))


def _bind(function: Callable[..., None], *arguments: Any) -> Callable[[], None]:
    return lambda: function(*arguments)
