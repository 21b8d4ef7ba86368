"""One run: a seeded scheduler that lets one actor after the other do one thing, and breaks things.

Who acts: the supervisor (decisions, coordinator of the size cap, owner of the topics), workers and their threads, producers, an
idempotent producer, one with transactions, subscribers of two topics, an operator who creates and deletes one of these topics, somebody
who drops staged bundles while their drivers commit, and two guests: one floods the workers with requests that only others may make, one
keeps the descriptors of all segments.

What breaks (`Run._faults`): a worker is killed at once, at one of its next calls on the disk, or right before or after one that takes or
sends a message; clients die so too; power is lost in every mode of `tests.disks.crashes`, or the supervisor is killed with its workers,
at once or at one of its next calls on the disk, and in some seeds there are more or fewer workers afterwards, which adopt the directories
of those that are gone; bits of sealed segments rot while a worker is gone, or flip under it and its consumers, in some seeds all the
time; calls on the disk fail; the disk is full; connections break; messages are late and overtake those of other connections; somebody is
slow; memory for arenas is refused; wake-ups of deliveries are lost; the wall clock jumps; time passes. In some seeds an embedded
store owns the directory between two lives of the node (`store_owner`). Half of all seeds have a size cap, with one of the three
policies; in some of them each topic may have half of it, and two producers of large bundles bring one to its limit.

What must hold: `model` after every step that learns something; after every step quotas within the cap and the limits of topics, and disks
within them but for one log a core (`limits`), and what guests keep of deleted segments counted (`Run._check_hoards`); at the end
`Calm.rest`: everything comes to rest within `REST_ROUNDS_MAX` rounds, transactions and topics included; `Calm.check_nothing_is_held`: no
session, arena or claim is left when the clients are gone, and no block that only guests keep; `Calm.stop`: a node that is told to stop
seals what it has and ends well; `run_seed`: no descriptor is left.
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

from quiver_actors.base.model import DEFAULT_TOPIC
from quiver_actors.base.units import MILLISECOND_NS, SECOND_NS
from tests.disks.crashes import CrashMode
from tests.disks.faulty import SimulatedCrash
from tests.sim.node.actors import (
    Actor,
    NumberedActor,
    Place,
    ProducerActor,
    SubscriberActor,
    TransactionActor,
    World,
)
from tests.sim.node.calm import Calm, processes_round
from tests.sim.node.droppers import DroppingActor
from tests.sim.node.guests import FloodingGuest
from tests.sim.node.hoarders import HoardingGuest, uncounted
from tests.sim.node.limits import SIDE, LimitCheck
from tests.sim.node.machine import POWER_LOSSES, Machine
from tests.sim.node.model import Violation
from tests.sim.node.operators import TopicActor
from tests.sim.node.restarts import CORES, Restarts, restart_cleanly
from tests.sim.node.room import any_room
from tests.sim.node.sharing import sharing_actors
from tests.sim.node.simulated_time import SimulatedTime
from tests.sim.node.store_owner import StoreOwner

_ROT_SHARE = 0.15
"""Seeds in which bits of live files flip all the time, not only as one of many faults."""
_HOARDS_EVERY = 5
"""Steps between two looks at what guests keep: each goes through all files."""

_Choices = tuple[Sequence[Callable[[], None]], list[int]]
"""Possible steps, and for each the sum of its weight and all weights before it."""


class Run:
    """One run of a seed. `without`: numbers of faults and names of actors that are left out, to find those that matter."""

    def __init__(self, time: SimulatedTime, seed: int, steps: int, without: Collection[int | str] = ()) -> None:
        self.time = time
        self.random = Random(seed)
        self.steps = steps
        self.without = without
        self.faults = 0
        self.step_number = 0
        room = any_room(Random(seed + 2))
        self._restarts = Restarts.of(seed, is_wide=room.is_wide)
        self.machine = Machine(time, Random(seed + 1), CORES, room, self._restarts.start_kills(Random(seed + 5)))
        self.limits = LimitCheck(self.machine)
        self._rots = Random(seed + 4).random() < _ROT_SHARE
        self._flips_live = seed % 2 == 0
        self.without = {*without, *self._restarts.left_out}
        self.world = World(self.machine, self.random)
        self.place, self.side = Place(DEFAULT_TOPIC, is_there=True), Place(SIDE, is_there=False)
        first, side_producer = ProducerActor("p", self.world, self.place), ProducerActor("s", self.world, self.side)
        # With "ann", who may get its bundles the short way.
        first.is_alone = seed % 20 == 19 and "p" not in self.without
        if self.machine.room.is_tight:
            # A topic that is made at run time has larger segments than such a cap has room for.
            self.without = {*self.without, "operator"}
        pushers: list[Actor] = [
            first,
            *(ProducerActor(name, self.world, self.place) for name in ("q", *self.machine.room.fillers)),
            *(NumberedActor(name, self.world, self.place) for name in ("n", "m")),
            *(TransactionActor(name, self.world, self.place) for name in ("t", "u")),
            side_producer,
            FloodingGuest("guest", self.world, self.place),
            HoardingGuest("hoarder", self.world, self.place),
            DroppingActor("dropper", self.world, self.place),
        ]
        places = {"ann": self.place, "ben": self.place, "sid": self.side}
        self.subscribers = [SubscriberActor(name, self.world, place) for name, place in places.items()]
        self.subscribers += sharing_actors(seed, self.world, self.place)
        known = sorted({each.subscriber for each in self.subscribers if each.place is self.place})
        self._store_owner = StoreOwner(self.machine, self.place, Random(seed + 8), known)
        self.operator = TopicActor("operator", self.world, self.side, [side_producer])
        if first.is_alone:
            self.without = {*self.without, *(each.name for each in (*pushers[1:], *self.subscribers[1:])), "operator"}
        self.pushers = [actor for actor in pushers if actor.name not in self.without]
        self.subscribers = [actor for actor in self.subscribers if actor.name not in self.without]
        self._slow: dict[str, int] = {}
        """Step until which each actor is slow."""
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
        """Run all phases: the storm, the calm, the last look."""
        try:
            ordinary, faults = self._ordinary(), self._faults()
            for number in range(self.steps):
                self.step_number = number
                self._do(ordinary if self.random.random() >= self._restarts.fault_share else faults)
                self.limits.check()
                self._check_hoards()
            self._slow.clear()
            calm = Calm(self)
            calm.rest()
            calm.check_nothing_is_held()
            calm.stop()
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
            (self.operator_step, 1),
            (self._supervisor_step, 4),
            (
                lambda: self.machine.faults.rot_live(self._core(), self.random.randrange(1 << 30)),
                3 if self._rots and self._flips_live else 0,
            ),
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

    def operator_step(self) -> None:
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
            (lambda: _bind(machine.faults.arm_kill, core(), random.randint(1, 12)), 10),
            (
                lambda: _bind(machine.faults.arm_kill_at_message, core(), random.randint(1, 20), random.random() < 0.5),
                6,
            ),
            (
                lambda: _bind(machine.lose_power, random.choice(losses), random.randrange(1 << 30), self._cores()),
                self._restarts.power_loss_weight,
            ),
            (lambda: _bind(self._restart_cleanly, self._cores()), self._restarts.clean_restart_weight),
            (
                lambda: _bind(self._give_to_a_store, self._restarts.cores_after_a_store(random)),
                self._restarts.store_weight,
            ),
            (lambda: _bind(machine.faults.arm_supervisor_kill, random.randint(1, 6)), 4),
            (lambda: _bind(machine.faults.rot, core(), random.randrange(1 << 30)), 6),
            (lambda: _bind(machine.faults.rot_live, core(), random.randrange(1 << 30)), 6 if self._flips_live else 0),
            (lambda: _bind(machine.faults.arm_error, core(), *self._disk_error()), 4),
            (lambda: _bind(machine.faults.limit_disk, core(), random.choice((None, None, 0, 20_000, 200_000))), 4),
            (lambda: _bind(machine.faults.refuse_memory, core(), random.randint(1, 3)), 2),
            (lambda: _bind(machine.faults.lose_wake_ups, core(), random.choice((1, 5, 1000))), 3),
            (lambda: _bind(machine.faults.delay_messages, random.choice((0.0, 0.0, 0.3, 0.7))), 3),
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
        return self._restarts.cores(self.random)

    def _restart_cleanly(self, cores: int) -> None:
        restart_cleanly(self.machine, lambda: self._as_supervisor(lambda: processes_round(self.machine)), cores)
        self.operator.look()

    def _give_to_a_store(self, cores: int) -> None:
        self._store_owner.live(cores)
        self.operator.look()

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

    def _check_hoards(self) -> None:
        if self.step_number % _HOARDS_EVERY == 0 and (found := uncounted(self.machine)):
            raise Violation("; ".join(found))

    def _close(self) -> None:
        for actor in self.clients:
            actor.close()
        self.machine.close()


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
