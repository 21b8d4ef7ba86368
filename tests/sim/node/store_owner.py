"""A process that owns the directory between two lives of the node: it opens it embedded, pushes, subscribes, acknowledges, and ends.

It closes the store, is killed, or loses the power with everybody else, between two calls or at any call on the disk, those of its start and
its end included. A second owner comes meanwhile. What it learns it tells the model, as the clients of the node do.
"""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Callable
from random import Random

from quiver_actors.base.units import MILLISECOND_NS
from quiver_actors.client import Delivery, GapNotice
from quiver_actors.errors import AlreadyRunning, QuiverError, SequenceGap, SequenceTooOld
from tests.disks.crashes import CrashMode
from tests.disks.faulty import SimulatedCrash
from tests.sim.node.actors import Place
from tests.sim.node.embedded import SimStore, SimStoreNode
from tests.sim.node.machine import POWER_LOSSES, Machine
from tests.sim.node.model import PushKey, Violation
from tests.sim.node.room import CORES_MAX
from tests.sim.node.shared_disk import SupervisorDisk

_NAME = "own"
_NUMBERED = "owner"
_TIMEOUT_SECONDS = 0.5
_ACTIONS_MAX = 30
_CALLS_MAX = 150
"""An owner that is killed at a call dies at one of so many of its first changes of the disk."""


class StoreOwner:
    """All owners of one run, one after the other. Owner: the run."""

    def __init__(self, machine: Machine, place: Place, random: Random, subscribers: list[str]) -> None:
        self._machine = machine
        self._place = place
        self._random = random
        self._subscribers = subscribers
        self._lives = self._number = self._numbered = 0
        self._unanswered: list[PushKey] = []
        """What the idempotent producer is not sure of."""

    def live(self, cores: int) -> None:
        """Own the directory in place of the node, which is killed before, and starts afterwards with so many cores."""
        random, machine = self._random, self._machine
        machine.log.append("an embedded store takes the directory over")
        machine.counts["owners"] += 1
        machine.end_processes(CrashMode.KEEP, 0, 1)
        machine.supervisor_disk = SupervisorDisk(machine.shared, machine.disks)
        self._lives += 1
        end = random.choice(("close", "kill", "power"))
        calls = random.randint(1, random.choice((30, _CALLS_MAX))) if random.random() < 0.6 else 0
        _Life(machine, calls, lambda node: self._own(node, closes=end == "close")).run()
        mode = random.choice(POWER_LOSSES) if end == "power" else CrashMode.KEEP
        machine.lose_power(mode, random.randrange(1 << 30), cores)

    def _own(self, node: SimStoreNode, *, closes: bool) -> None:
        store = SimStore(node, timeout=_TIMEOUT_SECONDS)
        actions: list[tuple[Callable[[SimStore], None], int]] = [
            (self._push_alone, 8),
            (self._push_many, 4),
            (self._push_numbered, 4),
            (self._consume, 6),
            (lambda _: self._let_go_on(node), 6),
            (lambda _: self._rival(node), 2),
            (lambda _: self._fail_a_call(node), 1),
        ]
        functions, weights = zip(*actions, strict=True)
        for _ in range(self._random.randint(1, _ACTIONS_MAX)):
            with contextlib.suppress(QuiverError):
                self._random.choices(functions, weights)[0](store)
        if closes:
            node.faulty.heal()
            store.close()
            self._machine.counts["owners_closed"] += 1

    # --- what it does ------------------------------------------------------------------------------------------------------

    def _push_alone(self, store: SimStore) -> None:
        """One bundle goes the short way where that is open."""
        keys = self._new_keys(1)
        (batch,) = self._place.model.begin(keys)
        receipt = store.push(batch, topic=self._place.topic, timeout=_TIMEOUT_SECONDS)
        self._place.model.acknowledged(keys, [receipt])
        self._machine.counts["owner_pushes"] += 1

    def _push_many(self, store: SimStore) -> None:
        keys = self._new_keys(self._random.randint(1, 5))
        receipts = store.push_many(self._place.model.begin(keys), topic=self._place.topic, timeout=_TIMEOUT_SECONDS)
        self._place.model.acknowledged(keys, list(receipts))

    def _push_numbered(self, store: SimStore) -> None:
        """The same again under the same numbers, until there are receipts, also in a later life."""
        if not self._unanswered:
            first, self._numbered = self._numbered, self._numbered + self._random.randint(1, 4)
            self._unanswered = [(_NUMBERED, number) for number in range(first, self._numbered)]
        batches = self._place.model.begin_single(self._unanswered)
        try:
            receipts = store.push_many(
                batches,
                topic=self._place.topic,
                producer=_NUMBERED,
                sequence=self._unanswered[0][1],
                timeout=_TIMEOUT_SECONDS,
            )
        except (SequenceGap, SequenceTooOld) as error:
            raise Violation(f"{_NUMBERED} pushes {self._unanswered} again and again, and hears: {error}") from error
        self._place.model.acknowledged(self._unanswered, list(receipts))
        self._unanswered = []

    def _new_keys(self, count: int) -> list[PushKey]:
        """A later life is another producer to the model: what an earlier one left unanswered may be stored or not."""
        first, self._number = self._number, self._number + count
        return [(f"{_NAME}{self._lives}", number) for number in range(first, self._number)]

    def _consume(self, store: SimStore) -> None:
        """A while of one subscription: some is acknowledged, and of that it is known what is durable."""
        if not self._subscribers:
            return
        subscriber, model, acked = self._random.choice(self._subscribers), self._place.model, []
        with store.subscribe(subscriber, topic=self._place.topic, start="earliest", gaps="deliver") as items:
            model.registered(subscriber)
            for _ in range(self._random.randint(1, 12)):
                item = items.get(timeout=0.002)
                if isinstance(item, GapNotice):
                    segment = (item.topic, item.core, item.segment_seq)
                    model.told(subscriber, item, may_be_promised=self._machine.faults.may_lose(segment))
                elif item is not None and self._take(subscriber, item):
                    acked.append(item)
            refused = {each.bundle_id for each in items.flush(_TIMEOUT_SECONDS)}
            for item in acked:
                if item.bundle_id not in refused and item.claim.is_answered and item.claim.refusal_code is None:
                    model.resolved(subscriber, item.bundle_id, is_heard=True)
                    self._machine.counts["owner_resolutions"] += 1

    def _take(self, subscriber: str, item: Delivery) -> bool:
        """Compare a delivery, and resolve it; whether it was acknowledged."""
        try:
            batch = item[0]
        except QuiverError as error:
            self._machine.log.append(f"the owner cannot read {item.bundle_id}: {error}")
            item.defer(0.001)
            return False
        self._place.model.delivered(subscriber, item.bundle_id, batch, may_be_dropped=self._machine.room.drops)
        if self._random.random() < 0.8:
            item.ack()
            return True
        return False

    def _let_go_on(self, node: SimStoreNode) -> None:
        for _ in range(self._random.choice((1, 5, 30))):
            node.turn()
        self._machine.time.advance(self._random.choice((0, MILLISECOND_NS, 30 * MILLISECOND_NS)))

    def _fail_a_call(self, node: SimStoreNode) -> None:
        kind = self._random.choice(("write", "fdatasync", "fsync", "rename", "allocate", "unlink", "sync_directory"))
        self._machine.log.append(f"a {kind} of the owner fails")
        self._machine.faults.failing_cores.update(range(CORES_MAX))
        node.faulty.fail(kind, self._random.randint(1, 4), self._random.choice((errno.EIO, errno.ENOSPC)))

    def _rival(self, node: SimStoreNode) -> None:
        """A second owner comes: it is refused, and changes nothing. If the first one is recovering, nobody has the directories open."""
        if node.drive.worker is None:
            return
        before = [disk.contents() for disk in self._machine.disks]
        rival = node.rival()
        try:
            rival.open()
        except AlreadyRunning:
            self._machine.counts["rivals_refused"] += 1
        else:
            raise Violation("a second owner opens the directories of a store")
        finally:
            rival.abandon()
        if [disk.contents() for disk in self._machine.disks] != before:
            raise Violation("a second owner that was refused has changed something")


class _Life:
    """The process of one owner, from its start to its end."""

    def __init__(self, machine: Machine, calls: int, live: Callable[[SimStoreNode], None]) -> None:
        self._machine = machine
        self._node = SimStoreNode(machine)
        self._node.faulty.crash_at(calls)
        self._live = live

    def run(self) -> None:
        """Live, and leave nothing but what is on the disks."""
        machine, node = self._machine, self._node
        machine.time.while_asleep = node.turn
        try:
            node.start()
            self._live(node)
        except SimulatedCrash as crash:
            machine.log.append(f"the owner dies at {crash}")
            machine.counts["owners_die_at_effects"] += 1
        except QuiverError as error:
            machine.log.append(f"the owner cannot open: {error}")
            machine.counts["owners_cannot_open"] += 1
        finally:
            machine.time.while_asleep = None
            machine.disks = [disk.copy() for disk in machine.disks]
            node.die()
