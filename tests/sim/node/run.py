"""One run: a seeded scheduler that lets one actor after the other do one thing, and breaks things."""

from __future__ import annotations

import contextlib
import errno
import gc
import os
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Any

from quiver_actors.client.delivery import Delivery
from quiver_actors.client.gaps import WaitingGap
from quiver_actors.errors import QuiverError
from quiver_actors.model import BundleId
from quiver_actors.units import MILLISECOND_NS, SECOND_NS
from tests.sim.node.clients import Running, SimProducer, SimSubscriber
from tests.sim.node.machine import POWER_LOSSES, TOPIC, Machine
from tests.sim.node.model import Model, PushKey, Violation
from tests.sim.node.simulated_time import SimulatedTime

REST_STEPS_MAX = 20_000
"""Steps in which everything must have come to rest once nothing breaks any more."""
_CORES = 2
_PRODUCERS = ("p", "q", "r")
_SUBSCRIBERS = ("ann", "ben")


@dataclass(slots=True)
class _Push:
    keys: list[PushKey]
    running: Running[Any]


class _ProducerActor:
    def __init__(self, name: str, run: Run) -> None:
        self.name = name
        self.run = run
        self.number = 0
        self.lives = 0
        self.push: _Push | None = None
        self.client = self._connect()

    def _connect(self) -> SimProducer:
        self.lives += 1
        return SimProducer(self.run.machine.run_dir, self.name)

    @property
    def is_idle(self) -> bool:
        return self.push is None

    def step(self, *, begins: bool) -> None:
        if self.push is None:
            if begins:
                self._begin()
            return
        push = self.push
        push.running.step()
        if push.running.is_done:
            self.push = None
            if push.running.error is None:
                self.run.model.acknowledged(push.keys, push.running.result)

    def _begin(self) -> None:
        random = self.run.random
        # A later life is another producer to the model: what an earlier one left unanswered may be stored or not.
        keys = [(f"{self.name}{self.lives}", self.number + index) for index in range(random.randint(1, 5))]
        self.number += len(keys)
        batches = self.run.model.begin(keys)
        key = random.choice((None, "a", "b", "c"))
        self.push = _Push(keys, self.client.push(batches, TOPIC, key, 3600.0))

    def die(self) -> None:
        self.client.die()
        self.push = None
        self.client = self._connect()


class _SubscriberActor:
    def __init__(self, name: str, run: Run) -> None:
        self.name = name
        self.run = run
        self.lives = 0
        self._acked: list[Delivery] = []
        self._held: list[Delivery] = []
        self._confirming: tuple[Running[None], Delivery] | None = None
        self._is_flushing = False
        self._connect()

    def _connect(self) -> None:
        self.lives += 1
        self.client = SimSubscriber(self.run.machine.run_dir, self.name, self.name, TOPIC, prefetch=8)
        self._registering: Running[None] | None = self.client.register()

    @property
    def is_idle(self) -> bool:
        return not self._held and self._registering is None and not self._is_flushing

    def step(self) -> None:
        if self._registering is not None:
            self._registering.step()
            if self._registering.is_done:
                if self._registering.error is None:
                    self.run.model.registered(self.name)
                    self._registering = None
                else:
                    self._registering = self.client.register()
        elif self._is_flushing:
            self._step_flush()
        else:
            self._work()

    def _work(self) -> None:
        random = self.run.random
        if self._held and random.random() < 0.6:
            self._resolve(self._held.pop(random.randrange(len(self._held))))
        elif self._acked and random.random() < 0.15:
            self._is_flushing = True
        else:
            self._take()

    def _take(self) -> None:
        try:
            item = self.client.take(self.run.time.now_ns)
        except QuiverError:
            return
        if isinstance(item, WaitingGap):
            notice = item.notice
            places = range(notice.bundle_index_first, notice.bundle_index_first + (notice.bundle_count or 0))
            ids = [BundleId(TOPIC, notice.core, notice.segment_seq, index) for index in places]
            self.client.consumer.confirm_gap(item)
            segment = (notice.core, notice.segment_seq)
            is_allowed = notice.core in self.run.machine.failing_cores
            self.run.model.told(self.name, ids, segment if not ids else None, may_be_promised=is_allowed)
        elif item is not None:
            try:
                batch = item.batch
            except QuiverError:
                return
            self.run.model.delivered(self.name, item.bundle_id, batch)
            self._held.append(item)

    def _resolve(self, delivery: Delivery) -> None:
        if self.run.is_resting or self.run.random.random() < 0.85:
            delivery.ack()
            self._acked.append(delivery)
        else:
            delivery.defer(0.001)

    def _step_flush(self) -> None:
        """Ask for each acknowledgement whether it is durable, one after the other."""
        if self._confirming is None:
            if not self._acked:
                self._is_flushing = False
                return
            delivery = self._acked.pop(0)
            self._confirming = (self.client.confirm(delivery), delivery)
        running, delivery = self._confirming
        running.step()
        if running.is_done:
            self._confirming = None
            if running.error is None:
                self.run.model.resolved(self.name, delivery.bundle_id)

    def die(self) -> None:
        self.client.die()
        self._held.clear()
        self._acked.clear()
        self._confirming = None
        self._is_flushing = False
        self._connect()


class Run:
    """See the module. `without`: numbers of faults that are left out, to find those that matter."""

    def __init__(self, time: SimulatedTime, seed: int, steps: int, without: frozenset[int] = frozenset()) -> None:
        self.time = time
        self.random = Random(seed)
        self.steps = steps
        self.without = without
        self.faults = 0
        self.is_resting = False
        self.machine = Machine(time, Random(seed + 1), _CORES)
        self.model = Model()
        self.producers = [_ProducerActor(name, self) for name in _PRODUCERS]
        self.subscribers = [_SubscriberActor(name, self) for name in _SUBSCRIBERS]

    def go(self) -> None:
        """Everything: the storm, the calm, the last look."""
        try:
            ordinary, faults = self._ordinary(), self._faults()
            for _ in range(self.steps):
                self._do(ordinary if self.random.random() < 0.985 else faults)
            self._rest()
        finally:
            self._close()

    def _do(self, choices: list[tuple[Callable[[], None], int]]) -> None:
        functions, weights = zip(*choices, strict=True)
        self.random.choices(functions, weights)[0]()

    # --- what goes on ------------------------------------------------------------------------------------------------------

    def _ordinary(self) -> list[tuple[Callable[[], None], int]]:
        return [
            (lambda: self.machine.step_worker(self.random.randrange(_CORES)), 30),
            (lambda: self.machine.step_job(self.random.randrange(_CORES)), 22),
            (lambda: self.random.choice(self.producers).step(begins=True), 22),
            (lambda: self.random.choice(self.subscribers).step(), 20),
            (self.machine.step_supervisor, 4),
            (lambda: self.time.advance(self.random.choice((10_000, 200_000, MILLISECOND_NS, 5 * MILLISECOND_NS))), 10),
        ]

    def _faults(self) -> list[tuple[Callable[[], None], int]]:
        random, machine = self.random, self.machine

        def core() -> int:
            return random.randrange(_CORES)

        found: list[tuple[Callable[[], Callable[[], None]], int]] = [
            (lambda: _bind(machine.kill, core()), 6),
            (lambda: _bind(machine.arm_kill, core(), random.randint(1, 12)), 10),
            (lambda: _bind(machine.lose_power, random.choice(POWER_LOSSES), random.randrange(1 << 30)), 4),
            (lambda: _bind(machine.arm_error, core(), *self._disk_error()), 4),
            (lambda: _bind(machine.limit_disk, core(), random.choice((None, None, 0, 20_000, 200_000))), 4),
            (lambda: _bind(random.choice(self.producers).client.cut), 5),
            (lambda: _bind(random.choice(self.subscribers).client.cut), 5),
            (lambda: _bind(random.choice(self.producers).die), 3),
            (lambda: _bind(random.choice(self.subscribers).die), 3),
            (lambda: _bind(self._jump), 2),
            (lambda: _bind(self.time.advance, random.choice((SECOND_NS, 40 * SECOND_NS))), 2),
        ]
        return [(lambda make=make: self._strike(make()), weight) for make, weight in found]  # type: ignore[misc]

    def _strike(self, fault: Callable[[], None]) -> None:
        self.faults += 1
        if self.faults not in self.without:
            self.machine.log.append(f"fault {self.faults}")
            fault()

    def _disk_error(self) -> tuple[str, int, int]:
        kind = self.random.choice(
            ("write", "fdatasync", "fsync", "rename", "allocate", "read", "unlink", "sync_directory")
        )
        return kind, self.random.randint(1, 4), self.random.choice((errno.EIO, errno.ENOSPC))

    def _jump(self) -> None:
        self.time.unix_offset_ns += self.random.choice((-1, 1)) * self.random.choice((SECOND_NS, 3600 * SECOND_NS))

    # --- the calm ----------------------------------------------------------------------------------------------------------

    def _rest(self) -> None:
        """Nothing breaks any more: everything must come to its end."""
        self.machine.heal()
        self.is_resting = True
        for number in range(REST_STEPS_MAX):
            self._round()
            if number % 20 == 19 and self._is_at_rest():
                return
        raise Violation(f"not at rest after {REST_STEPS_MAX} rounds: {self._unrest()}")

    def _round(self) -> None:
        self.machine.step_supervisor()
        for core in range(_CORES):
            self.machine.step_worker(core)
            for _ in range(3):
                self.machine.step_job(core)
        for producer in self.producers:
            producer.step(begins=False)
        for subscriber in self.subscribers:
            for _ in range(3):
                subscriber.step()
        self.time.advance(2 * MILLISECOND_NS)

    def _is_at_rest(self) -> bool:
        return (
            all(producer.is_idle for producer in self.producers)
            and all(subscriber.is_idle for subscriber in self.subscribers)
            and not any(self.model.missing(name) for name in _SUBSCRIBERS)
        )

    def _unrest(self) -> str:
        busy = [actor.name for actor in (*self.producers, *self.subscribers) if not actor.is_idle]
        missing = {name: self.model.missing(name)[:5] for name in _SUBSCRIBERS}
        return f"busy {busy}, missing {missing}"

    def _close(self) -> None:
        for actor in (*self.producers, *self.subscribers):
            actor.client.die()
        self.machine.close()


def run_seed(time: SimulatedTime, seed: int, steps: int, without: frozenset[int] = frozenset()) -> list[str]:
    """One run; nothing of it may be left when it is over.

    Returns:
        What happened.

    Raises:
        RunFailed: a promise was broken, or the product let something escape.
    """
    gc.collect()
    before = open_descriptors()
    log, faults = _go(Run(time, seed, steps, without))
    gc.collect()
    if left := open_descriptors() - before:
        raise RunFailed(log, faults, f"descriptors are left open: {sorted(left)}")
    return log


def _go(run: Run) -> tuple[list[str], int]:
    try:
        run.go()
    except Exception as error:
        raise RunFailed(run.machine.log, run.faults, traceback.format_exc()) from error
    return run.machine.log, run.faults


class RunFailed(Exception):
    """A run that broke a promise: its log, how many faults it met, and what was found."""

    def __init__(self, log: list[str], faults: int, reason: str) -> None:
        super().__init__(reason)
        self.log = log
        self.faults = faults
        self.reason = reason


def open_descriptors() -> set[str]:
    """What this process has open, without what only the looking needs."""
    found = set()
    for number in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):
            found.add(f"{number} {os.readlink(f'/proc/self/fd/{number}')}")
    return {each for each in found if "/proc/" not in each}


def _bind(function: Callable[..., None], *arguments: Any) -> Callable[[], None]:
    return lambda: function(*arguments)
