"""The clients of a simulated node: each does one small thing when the scheduler lets it, and tells the model what it learns."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any, Protocol

from quiver_actors.base.model import BundleId
from quiver_actors.client.delivery import Delivery
from quiver_actors.client.gaps import WaitingGap
from quiver_actors.client.stage import StagePlan
from quiver_actors.errors import (
    QuiverError,
    SequenceGap,
    SequenceTooOld,
    TopicDeleted,
    TopicRecreated,
    TransactionAborted,
)
from quiver_actors.transactions.model import Token
from tests.sim.node.clients import Running, SimProducer, SimSubscriber
from tests.sim.node.machine import Machine
from tests.sim.node.message_kills import MessageKills
from tests.sim.node.model import Model, Outcome, PushKey, Violation

_TTL_SECONDS = 0.2


class Place:
    """One topic: the model of its present life, and whether clients may count on it."""

    def __init__(self, topic: str, *, is_there: bool) -> None:
        self.topic = topic
        self.is_there = is_there
        self.models = [Model()]
        """One model for each life of the topic, the present one last."""

    @property
    def model(self) -> Model:
        return self.models[-1]


@dataclass
class World:
    """State that all actors share. Owner: the run."""

    machine: Machine
    random: Random
    is_resting: bool = False


class Actor(Protocol):
    name: str
    message_kills: MessageKills
    """Its next step may end in the middle: then it is to die."""

    def step(self) -> None:
        """Do one small thing."""

    def die(self) -> None:
        """Die like after SIGKILL; the next life begins at once."""

    def cut(self) -> None:
        """Its connections break."""

    def close(self) -> None:
        """Leave for ever."""

    @property
    def is_idle(self) -> bool:
        """Whether nothing is under way."""


class Pushing:
    """Common part of all actors that push."""

    def __init__(self, name: str, world: World, place: Place) -> None:
        self.name = name
        self.world = world
        self.place = place
        self.number = 0
        self.lives = 0
        self.running: Running[Any] | None = None
        self.message_kills = MessageKills(self.cut)
        self.client = self._connect()

    def _connect(self) -> SimProducer:
        self.lives += 1
        return SimProducer(self.world.machine.run_dir, self.name, self.world.machine.delays)

    def _new_keys(self, name: str) -> list[PushKey]:
        first, self.number = self.number, self.number + self.world.random.randint(1, 5)
        return [(name, number) for number in range(first, self.number)]

    @property
    def is_idle(self) -> bool:
        return self.running is None

    def cut(self) -> None:
        self.client.cut()

    def close(self) -> None:
        self.client.die()

    def die(self) -> None:
        self.client.die()
        self.running = None
        self.client = self._connect()

    def step(self) -> None:
        if self.running is None:
            if not self.world.is_resting and self.place.is_there:
                self._begin()
            return
        self.running.step()
        if self.running.is_done:
            running, self.running = self.running, None
            self._finish(running)

    def _begin(self) -> None:
        raise NotImplementedError

    def _finish(self, running: Running[Any]) -> None:
        raise NotImplementedError


class ProducerActor(Pushing):
    """Pushes, and takes the receipts. What was not answered may be stored or not. Now and then some bundles in a row travel alone."""

    is_alone = False
    """Whether all bundles travel alone."""
    _alone_left = 0
    """Number of the next pushes that travel alone."""

    def _begin(self) -> None:
        # A later life is another producer to the model: what an earlier one left unanswered may be stored or not.
        self._alone_left = self._alone_left - 1 if self._alone_left else self.world.random.choice((0, 12))
        self._alone_left = self._alone_left or int(self.is_alone)
        self._keys = self._new_keys(f"{self.name}{self.lives}")[: 1 if self._alone_left else None]
        self._model = self.place.model
        batches = self._model.begin(self._keys)
        if self._alone_left:
            self.running = self.client.push_alone(batches[0], self.place.topic)
            return
        key = self.world.random.choice((None, "a", "b", "c"))
        self.running = self.client.push(batches, self.place.topic, key)

    def _finish(self, running: Running[Any]) -> None:
        if isinstance(running.error, TopicDeleted | TopicRecreated):
            self.die()
        elif running.error is None and self._model is self.place.model:
            assert running.result is not None
            self._model.acknowledged(self._keys, running.result)

    def stray(self, model: Model) -> None:
        """There is another topic of that name: what is under way may end in it."""
        if self.running is not None:
            model.strayed(self._keys)


class NumberedActor(Pushing):
    """Pushes as an idempotent producer: the same again under the same numbers, until it has the receipts."""

    _keys: Sequence[PushKey] = ()

    def _begin(self) -> None:
        self._keys = self._keys or self._new_keys(self.name)
        batches = self.place.model.begin_single(list(self._keys))
        self.running = self.client.push_numbered(batches, self.place.topic, self.name, self._keys[0][1])

    def _finish(self, running: Running[Any]) -> None:
        if isinstance(running.error, SequenceGap | SequenceTooOld):
            raise Violation(f"{self.name} pushes {self._keys} again and again, and hears: {running.error}")
        if running.error is None:
            assert running.result is not None
            self.place.model.acknowledged(list(self._keys), running.result)
            self._keys = ()


class TransactionActor(Pushing):
    """Stages bundles on one or two workers, decides, publishes; now and then it aborts or stops in the middle."""

    def _begin(self) -> None:
        self._txn_id = f"{self.name}-{self.lives}-{self.number}"
        self._tokens: list[Token] = []
        self._next: Callable[[Any], None] = self._prepared
        self._parts_left = self.world.random.randint(1, 2)
        self._prepare()

    def _prepare(self) -> None:
        self._parts_left -= 1
        keys = self._new_keys(self.name)
        batches = self.place.model.begin_part(self._txn_id, keys)
        plan = StagePlan(self._txn_id, self.place.topic, self._parts_left, 0, 0, "", _TTL_SECONDS, "sim")
        self._next = self._prepared
        self.running = self.client.prepare(plan, batches, self.world.random.choice("abcd"))

    def _finish(self, running: Running[Any]) -> None:
        if isinstance(running.error, TransactionAborted) and self._next is self._decided:
            self.place.model.transactions[self._txn_id] = Outcome.ABORTED
        elif running.error is None:
            self._next(running.result)
        # After any other error it walks away: what happens to the stages is their workers' business.

    def _prepared(self, token: Token | None) -> None:
        self._tokens += [token] if token is not None else []
        if self._parts_left:
            self._prepare()
        else:
            self._decide()

    def _decide(self) -> None:
        chance = self.world.random.random()
        if chance < 0.1:
            return
        self._next = self._decided
        commits = chance < 0.8
        if commits:
            self.place.model.transactions[self._txn_id] = Outcome.ASKED
        self.running = self.client.decide(self._txn_id, self._tokens if commits else None)

    def _decided(self, decision: Any) -> None:
        is_commit = decision.is_commit
        self.place.model.transactions[self._txn_id] = Outcome.COMMITTED if is_commit else Outcome.ABORTED
        if is_commit and self.world.random.random() < 0.8:
            self._next = self._published
            self.running = self.client.publish(self._tokens)

    def _published(self, _: object) -> None:
        """End a published transaction: nothing is left to do."""


class SubscriberActor:
    """Registers, takes, acknowledges or defers, and asks whether its acknowledgements are durable: each of them, or all by a flush."""

    def __init__(self, name: str, world: World, place: Place, subscriber: str = "") -> None:
        self.name = name
        self.subscriber = subscriber or name
        self.world = world
        self.place = place
        self._acked: list[Delivery] = []
        self._held: list[Delivery] = []
        self._newest: dict[BundleId, int] = {}
        """The token of the newest delivery of each bundle. The delivery itself would keep its segment mapped."""
        self._confirming: tuple[Running[None], Delivery] | None = None
        self._is_asking = False
        self._flushing: tuple[Running[Any], list[Delivery]] | None = None
        self.message_kills = MessageKills(self.cut)
        self._connect()

    def _connect(self) -> None:
        self.model = self.place.model
        self.client = self._new_client()
        self._registering: Running[None] | None = self.client.register()

    def _new_client(self) -> SimSubscriber:
        machine = self.world.machine
        return SimSubscriber(machine.run_dir, self.name, self.place.topic, machine.delays, prefetch=8)

    @property
    def is_idle(self) -> bool:
        if not self.place.is_there:
            return True
        return not self._held and self._registering is None and not self._is_asking and self._flushing is None

    def cut(self) -> None:
        self.client.cut()

    def close(self) -> None:
        self._forget()
        self.client.die()

    def die(self) -> None:
        self.close()
        self._connect()

    def _forget(self) -> None:
        self._held.clear()
        self._newest.clear()
        self._acked.clear()
        self._confirming = None
        self._is_asking = False
        self._flushing = None

    def step(self) -> None:
        if self.model is not self.place.model:
            self.die()
        if self._registering is not None:
            self._step_registering(self._registering)
        elif self._is_asking:
            self._step_asking()
        elif self._flushing is not None:
            self._step_flush(*self._flushing)
        else:
            self._work()

    def _step_registering(self, registering: Running[None]) -> None:
        registering.step()
        if not registering.is_done:
            return
        if registering.error is None:
            self.model.registered(self.subscriber)
            self._registering = None
        else:
            self._registering = self.client.register()

    def _work(self) -> None:
        random = self.world.random
        if self._held and random.random() < 0.6:
            self._resolve(self._held.pop(random.randrange(len(self._held))))
        elif self._acked and random.random() < 0.1:
            self._is_asking = True
        elif self._acked and random.random() < 0.1:
            acked, self._acked = self._acked, []
            self._flushing = (self.client.flush(), acked)
        else:
            self._take()

    def _take(self) -> None:
        try:
            item = self.client.take(self.world.machine.time.now_ns)
        except QuiverError:
            return
        if isinstance(item, WaitingGap):
            notice = item.notice
            is_allowed = self.world.machine.faults.may_lose((notice.topic, notice.core, notice.segment_seq))
            self.model.told(self.subscriber, notice, may_be_promised=is_allowed)
            self.client.consumer.confirm_gap(item)
        elif item is not None:
            try:
                batch = item[0]  # beside it may be the slot of the producer's name and number
            except QuiverError as error:
                self.world.machine.log.append(f"{self.name} cannot read {item.bundle_id}: {error}")
                item.defer(0.001)
                return
            self._note_delivered(item, batch)
            self._held.append(item)
            self._newest[item.bundle_id] = item.token

    def _note_delivered(self, item: Delivery, batch: Any) -> None:
        if item.bundle_id in self.model.subscribers[self.subscriber].settled and self.client.has_unread():
            # Another consumer has resolved it, which shares the subscriber or belongs to an owner of the directory, and this one has not
            # read yet that its worker has withdrawn it, or is gone.
            self.world.machine.counts["withdrawn_late"] += 1
            return
        drops = self.world.machine.room.drops
        self.model.delivered(self.subscriber, item.bundle_id, batch, may_be_dropped=drops)

    def _resolve(self, delivery: Delivery) -> None:
        if self.world.is_resting or self.world.random.random() < 0.85:
            delivery.ack()
            self._acked.append(delivery)
        else:
            delivery.defer(0.001)

    def _step_asking(self) -> None:
        """Ask for each acknowledgement whether it is durable, one after the other."""
        if self._confirming is None:
            if not self._acked:
                self._is_asking = False
                return
            delivery = self._acked.pop(0)
            self._confirming = (self.client.confirm(delivery), delivery)
        running, delivery = self._confirming
        running.step()
        if running.is_done:
            self._confirming = None
            if running.error is None:
                self.model.resolved(self.subscriber, delivery.bundle_id, is_heard=True)

    def _step_flush(self, flushing: Running[Any], acked: list[Delivery]) -> None:
        """After an error nobody knows of any of them."""
        flushing.step()
        if not flushing.is_done:
            return
        self._flushing = None
        for delivery in acked if flushing.error is None else ():
            is_heard = self.client.is_heard(delivery)
            # Of one that was lost with its connection and came again, what became of it then counts: perhaps it was refused.
            is_newest = self._newest.get(delivery.bundle_id) == delivery.token
            if not self.client.is_refused(delivery) and (is_heard or is_newest):
                self.model.resolved(self.subscriber, delivery.bundle_id, is_heard=is_heard)
