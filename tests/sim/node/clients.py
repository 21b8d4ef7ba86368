"""Clients in one process: the client's own flows, driven a step at a time instead of by waiting."""

from __future__ import annotations

import itertools
import select
from typing import Any, Generic, TypeVar, cast

from quiver_actors.base.model import Receipt
from quiver_actors.client.channels import ChannelSet
from quiver_actors.client.consumer import Consumer
from quiver_actors.client.delivery import Delivery
from quiver_actors.client.exchange import Exchange, Flow, Steps
from quiver_actors.client.keyed import pushing_keyed
from quiver_actors.client.lone_lane import LoneLane
from quiver_actors.client.node_view import NodeDirectory
from quiver_actors.client.producer import Producer
from quiver_actors.client.publishing import deciding, publishing
from quiver_actors.client.push_channel import PushChannel
from quiver_actors.client.refused import RefusedResolution
from quiver_actors.client.retry import is_retried
from quiver_actors.client.stage import Stage, StagePlan
from quiver_actors.client.subscribe_request import StartPoints, SubscribeOptions, SubscribeRequest
from quiver_actors.errors import QuiverError
from quiver_actors.node.worker.budgets import NEVER_NS
from quiver_actors.store.encoding.lone import lone_entry
from quiver_actors.transactions.model import ABORT, COMMIT, Decision, Token
from tests.sim.node.polls import DelayingPoll, Delays

T = TypeVar("T")

PATIENCE_SECONDS = 3600.0


def _exchange(delays: Delays) -> Exchange:
    made = Exchange()
    made._epoll = DelayingPoll(made._epoll, delays)  # type: ignore[assignment]
    return made


class Running(Generic[T]):
    """One call of a client on its way: `step` goes as far as it goes without waiting."""

    def __init__(self, exchange: Exchange, steps: Steps[T]) -> None:
        self.result: T | None = None
        self.error: QuiverError | None = None
        self.is_done = False
        self._exchange = exchange
        self._steps = steps
        self._flow: Flow[Any] | None = None

    def step(self) -> None:
        """Take in what has arrived, then let the call go on to where it would wait."""
        with self._exchange.lock:
            self._exchange.handle_ready()
        try:
            if self._flow is None:
                self._flow = next(self._steps)
            self._go_on(self._flow)
        except StopIteration as stop:
            self.result, self.is_done = stop.value, True
        except QuiverError as error:
            self.error, self.is_done = error, True

    def _go_on(self, flow: Flow[Any]) -> None:
        try:
            with self._exchange.lock:
                next(flow)
        except StopIteration as stop:
            self._flow = self._steps.send(stop.value)
        except QuiverError as error:
            self._flow = self._steps.throw(error)


def as_steps(flow: Flow[T]) -> Steps[T]:
    result: T = yield flow
    return result


class SimProducer:
    """A client that pushes."""

    def __init__(self, run_dir: str, name: str, delays: Delays) -> None:
        self.exchange = _exchange(delays)
        directory = NodeDirectory(run_dir)
        self.channels: ChannelSet[PushChannel] = ChannelSet(
            self.exchange, directory, lambda core: PushChannel(self.exchange, directory, core, name)
        )
        self.producer = Producer(self.channels)
        self.lone_pushes = 0
        """Number of pushes that went the short way."""
        # Not by the process's number, so that a seed is a seed.
        self.producer._turn = 0

    def push(self, bundles: list[Any], topic: str, key: str | None) -> Running[Any]:
        steps = self.producer.pushing(bundles, topic=topic, key=key, item_counts=None, timeout_seconds=PATIENCE_SECONDS)
        return Running(self.exchange, steps)

    def push_alone(self, bundle: Any, topic: str) -> Running[list[Receipt]]:
        """Push one bundle by the short way, where it is open, or else by the way that opens it."""
        return Running(self.exchange, self._pushing_alone(bundle, topic))

    def _pushing_alone(self, bundle: Any, topic: str) -> Steps[list[Receipt]]:
        lane = self.producer.lanes.get(topic)
        if lane is not None and lane.is_open:
            receipt = yield self._sending_alone(lane, bundle, topic)
            if receipt is not None:
                return [receipt]
        receipt = yield from self.producer.pushing_one(
            bundle, topic=topic, key=None, item_count=None, timeout_seconds=PATIENCE_SECONDS
        )
        return [receipt]

    def _sending_alone(self, lane: LoneLane, bundle: Any, topic: str) -> Flow[Receipt | None]:
        """What a lane does, without waiting; None: it has to go the general way, and was perhaps stored."""
        channel, group = lane._channel, lane._group
        lone = lone_entry(bundle, lane._slot_id, lane._streams, None)
        assert lone is not None
        group.begin()
        if not channel.send_lone(group, lone, 0):
            return None
        while not (group.is_acked or group.is_lost or group.error is not None):
            yield NEVER_NS
        if group.error is not None and not is_retried(group.error):
            raise group.error
        if not group.acks:
            return None
        ((run, durability),) = group.acks
        self.lone_pushes += 1
        return lane._receipt(run.segment_seq, run.bundle_index, run.sequence, int(durability))

    def push_numbered(self, bundles: list[Any], topic: str, name: str, first: int) -> Running[Any]:
        """Push the bundles as an idempotent producer, numbered from `first`."""
        counted = [(bundle, None) for bundle in bundles]
        steps = pushing_keyed(self.producer, self.channels, counted, topic, None, name, first, PATIENCE_SECONDS)
        return Running(self.exchange, steps)

    def prepare(self, plan: StagePlan, bundles: list[Any], key: str) -> Running[Token | None]:
        """One stage, from its beginning to its token."""
        return Running(self.exchange, self._preparing(plan, bundles, key))

    def _preparing(self, plan: StagePlan, bundles: list[Any], key: str) -> Steps[Token | None]:
        stage = Stage(self.producer, self.channels, plan, key)
        yield stage.beginning(PATIENCE_SECONDS)
        try:
            yield from stage.pushing(((bundle, None) for bundle in bundles), {}, PATIENCE_SECONDS)
        except QuiverError:
            stage.abort()
            raise
        token: Token | None = yield stage.preparing(PATIENCE_SECONDS)
        return token

    def decide(self, txn_id: str, tokens: list[Token] | None) -> Running[Decision | None]:
        """Commit these, or abort (None)."""
        outcome = ABORT if tokens is None else COMMIT
        flow = deciding(self.channels, txn_id, 0, outcome, tokens or (), PATIENCE_SECONDS)
        return Running(self.exchange, as_steps(flow))

    def publish(self, tokens: list[Token]) -> Running[None]:
        flow = publishing(self.channels, tokens, drop_others=True, timeout_seconds=PATIENCE_SECONDS)
        return Running(self.exchange, as_steps(flow))

    def cut(self) -> None:
        """The connections break; the client lives on."""
        cut(self.channels)

    def die(self) -> None:
        """Die like after SIGKILL, without a word to anybody. Idempotent."""
        if self.exchange.is_closed:
            return
        with self.exchange.lock:
            self.channels.close()
        self.exchange.close()


class SimSubscriber:
    """A client that reads, with one consumer."""

    def __init__(self, run_dir: str, name: str, topic: str, delays: Delays, **options: Any) -> None:
        self.exchange = _exchange(delays)
        wanted = SubscribeRequest.parse(
            topic, name, "deliver", cast(SubscribeOptions, {"start": "earliest", **options})
        )
        self.consumer: Consumer[Delivery, Exchange] = Consumer(
            self.exchange, NodeDirectory(run_dir), name, wanted, StartPoints("earliest"), Delivery
        )

    def register(self) -> Running[None]:
        return Running(self.exchange, as_steps(self.consumer.connections.registering(1000.0)))

    def take(self, now_ns: int) -> Any:
        """Return the next bundle or notice, or None. Connects where that is due."""
        return self._once(self.consumer.taking(now_ns))

    def confirm(self, delivery: Delivery) -> Running[None]:
        """Done without an error: its resolution is durable."""
        return Running(
            self.exchange, as_steps(self.consumer.resolutions.confirming(delivery.claim, repr(delivery), 1000.0))
        )

    def flush(self) -> Running[list[RefusedResolution]]:
        """Done without an error: everything that was acknowledged before is durable, but for what was refused."""
        return Running(self.exchange, as_steps(self.consumer.resolutions.flushing(1000.0)))

    def is_heard(self, delivery: Delivery) -> bool:
        """Whether a worker has heard what became of it and made that durable. Of what went with a connection a flush says only that nothing
        of it is owed any more: it may have been dropped meanwhile."""
        return delivery.claim.is_answered

    def is_refused(self, delivery: Delivery) -> bool:
        """Whether a worker has refused what became of it, as the claim was gone."""
        return delivery.claim.refusal_code is not None

    def has_unread(self) -> bool:
        """Whether a worker has said something that this client has not heard yet."""
        sockets = [channel._connection.fileno() for channel in self.consumer.channels.opened() if channel._connection]
        return bool(select.select(sockets, [], [], 0)[0]) if sockets else False

    def cut(self) -> None:
        cut(self.consumer.channels)

    def die(self) -> None:
        if self.exchange.is_closed:
            return
        with self.exchange.lock:
            self.consumer.channels.close()
        self.exchange.close()

    def _once(self, flow: Flow[T]) -> T | None:
        running = Running(self.exchange, as_steps(flow))
        for _ in itertools.repeat(None, 3):
            running.step()
            if running.is_done:
                break
        if running.error is not None:
            raise running.error
        return running.result


def cut(channels: ChannelSet[Any]) -> None:
    for channel in channels.opened():
        connection = channel._connection
        if connection is not None:
            connection._socket.shutdown(2)
