"""The subscriptions of remote clients: each has a consumer here, which attaches to the workers as any other one of this host.

Guarantees
- What was handed over, and the answer to it was lost, is handed over again, whole and in its order.
- A gap notice is confirmed when its answer has arrived at the client: not before.
- A consumer of which nothing is heard for `IDLE_SECONDS` is ended: what it holds goes to others.
- Only the holder of the token that opened a subscription uses it.
"""

from __future__ import annotations

import contextlib
import secrets
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pyarrow as pa

from quiver_actors.base.locks import new_lock
from quiver_actors.base.model import BundleId
from quiver_actors.base.protocol.messages import TopicInfo
from quiver_actors.base.rights import TokenHolder
from quiver_actors.base.topic_hints import unknown_topic
from quiver_actors.base.units import SECOND_NS
from quiver_actors.client import Client, Delivery, GapNotice, GapSubscription, StoredBundle, Ticket
from quiver_actors.client.gaps import WaitingGap
from quiver_actors.client.subscribe_request import SubscribeOptions, SubscribeRequest
from quiver_actors.errors import (
    ClosedError,
    FormatError,
    NotClaimed,
    ProtocolError,
    QuiverError,
    UsageError,
)
from quiver_actors.flight import remote_contract as rc
from quiver_actors.flight.contract import Done
from quiver_actors.flight.frames import Frame, framed
from quiver_actors.flight.token_limit import TokenLimit

IDLE_SECONDS = 30.0
CONSUMERS_MAX = 192
"""Most open subscriptions of one token. Each has a connection to every worker, and mostly a call under way (`callers.CALLS_MAX`)."""
_TICKETS_MAX = 65_536
_OPTIONS = SubscribeOptions.__annotations__.keys() - {"idle_timeout", "on_bundle", "on_gap"}


class ServedSubscription(GapSubscription):
    """Hands gap notices over without confirming them: that is done when the client has them."""

    _handed: tuple[WaitingGap, ...] = ()

    def confirm_handed(self) -> None:
        """Confirm all notices that were handed over."""
        handed, self._handed = self._handed, ()
        for gap in handed:
            self._consumer.confirm_gap(gap)

    @property
    def hands_one_by_one(self) -> bool:
        """Whether bundles end by a count of deliveries: then none may be sent ahead of what the far caller takes, as it counts."""
        with self._exchange.lock:
            return any(channel.handed.is_told for channel in self._consumer.channels.opened())

    def _tell(self, gap: WaitingGap) -> Delivery | GapNotice | None:
        self._handed = (*self._handed, gap)
        return gap.notice


class RemoteConsumer:
    """One open subscription. Several threads may call its methods."""

    def __init__(self, holder: TokenHolder, subscription: ServedSubscription) -> None:
        self.holder = holder
        self.calls = 0
        """Calls that are under way."""
        self.heard_ns = time.monotonic_ns()
        self._subscription = subscription
        self._taking = new_lock()
        self._lock = new_lock()
        self._numbered = 0
        self._held: dict[int, Delivery] = {}
        self._tickets: OrderedDict[int, Ticket] = OrderedDict()
        self._last_take = 0
        self._last_answer: pa.RecordBatch | None = None

    @contextlib.contextmanager
    def heard(self) -> Iterator[None]:
        """A call of the client is carried out: it is alive."""
        with self._lock:
            self.calls += 1
        try:
            yield
        finally:
            with self._lock:
                self.calls -= 1
                self.heard_ns = time.monotonic_ns()

    def is_idle(self, since_ns: int) -> bool:
        """Whether no call has been carried out since then."""
        with self._lock:
            return not self.calls and self.heard_ns < since_ns

    def take(self, ticket: rc.TakeTicket) -> pa.RecordBatch:
        """The next bundles and notices; none where none came in time.

        Raises:
            ProtocolError: the number of the ticket is neither that of the last answer nor the next one.
        """
        with self._taking:
            if ticket.number == self._last_take and self._last_answer is not None:
                return self._last_answer
            if ticket.number != self._last_take + 1:
                raise ProtocolError(f"bundles were asked for as number {ticket.number}, behind {self._last_take}")
            self._subscription.confirm_handed()
            answer = framed(self._next(ticket))
            self._last_take, self._last_answer = ticket.number, answer
            return answer

    def claim(self, ticket: rc.ClaimTicket) -> pa.RecordBatch:
        """Claim one bundle; one that is held already is handed over again."""
        bundle_id = BundleId(self._subscription.topic, ticket.core, ticket.segment_seq, ticket.bundle_index)
        with self._lock:
            held = next((item for item in self._held.items() if item[1].bundle_id == bundle_id), None)
        if held is not None:
            return framed([_delivered(*held)])
        delivery = self._subscription.claim(bundle_id, _seconds(ticket.timeout_ns))
        return framed([self._handed_over(delivery)])

    def carry_out(self, act: rc.Act, taken: int) -> Any:
        """Do what the client asks for, and return the answer.

        Args:
            taken: number of the last answer that the caller of the client was handed.
        """
        subscription = self._subscription
        if taken and taken == self._last_take:
            subscription.confirm_handed()
        match act:
            case rc.Resolve():
                self._resolve(act.outcomes)
                return rc.Resolved(subscription.refused_count)
            case rc.Settle():
                self._settle(act)
            case rc.Flush():
                refused = subscription.flush(_seconds(act.timeout_ns))
                return rc.Refusals([rc.Refusal(*r.bundle_id[1:], r.token, r.error.code, str(r.error)) for r in refused])
            case rc.ExtendLeases():
                return self._extend(act)
            case rc.AskStanding():
                return self._standing(_seconds(act.timeout_ns))
            case rc.AskRange():
                bounds = [BundleId(subscription.topic, act.core, *place) for place in (act.start, act.end)]
                return rc.Count(subscription.pending_in_range(bounds[0], bounds[1], _seconds(act.timeout_ns)))
            case rc.AckThrough():
                bundle_id = BundleId(subscription.topic, act.core, act.segment_seq, act.bundle_index)
                subscription.ack_through(bundle_id, _seconds(act.timeout_ns))
            case rc.EndSubscription():
                self.close()
        return Done()

    def close(self) -> None:
        """End the consumer; what it holds goes back."""
        self._subscription.close()

    def _next(self, ticket: rc.TakeTicket) -> list[Frame]:
        frames: list[Frame] = []
        size_bytes, wait_seconds = 0, min(ticket.wait_ns, rc.WAIT_NS_MAX) / SECOND_NS
        bundles_max = (
            1 if self._subscription.hands_one_by_one else min(max(ticket.bundles_max, 1), rc.TAKEN_BUNDLES_MAX)
        )
        while len(frames) < bundles_max and size_bytes < rc.TAKEN_BYTES_MAX:
            try:
                event = self._subscription.get(0 if frames else wait_seconds)
            except QuiverError:
                # What was taken before is handed over first; the next call says it again.
                if frames:
                    break
                raise
            if event is None:
                break
            if isinstance(event, GapNotice):
                frames.append(Frame(rc.NoticeFacts(*event[1:]), {}))
                break
            # What cannot be read has been reported by that: a notice comes in its place.
            with contextlib.suppress(FormatError):
                frames.append(self._handed_over(event))
                size_bytes += sum(batch.nbytes for batch in frames[-1].batches.values())
        return frames

    def _handed_over(self, delivery: Delivery) -> Frame:
        with self._lock:
            self._numbered += 1
            number = self._numbered
        frame = _delivered(number, delivery)
        with self._lock:
            self._held[number] = delivery
        return frame

    def _resolve(self, outcomes: list[rc.Outcome]) -> None:
        for outcome in outcomes:
            with self._lock:
                delivery = self._held.pop(outcome.number, None)
                if delivery is None:
                    continue
                self._tickets[outcome.number] = _resolved(delivery, outcome)
                while len(self._tickets) > _TICKETS_MAX:
                    self._tickets.popitem(last=False)

    def _settle(self, act: rc.Settle) -> None:
        deadline = time.monotonic() + _seconds(act.timeout_ns)
        with self._lock:
            tickets = [(number, self._tickets.get(number)) for number in act.numbers]
        for number, ticket in tickets:
            if ticket is None:
                raise NotClaimed(f"delivery {number} was not resolved here, or too many others were since")
            ticket.wait(max(deadline - time.monotonic(), 0))

    def _extend(self, act: rc.ExtendLeases) -> rc.Extended:
        with self._lock:
            wanted = {number: self._held[number] for number in act.numbers if number in self._held}
        lost = set(map(id, self._subscription.extend(wanted.values(), _seconds(act.timeout_ns))))
        return rc.Extended({number: _left_ns(each) for number, each in wanted.items() if id(each) not in lost})

    def _standing(self, timeout_seconds: float) -> rc.Standing:
        subscription = self._subscription
        pending = subscription.pending_count(timeout_seconds)
        oldest = {core: place[2:] for core, place in subscription.oldest_incomplete(timeout_seconds).items()}
        return rc.Standing(pending, subscription.all_drained(timeout_seconds), oldest)


class Consumers:
    """The open subscriptions of one node, by their ids."""

    def __init__(self, client: Callable[[], Client], idle_seconds: float = IDLE_SECONDS) -> None:
        """`client` returns the client to use."""
        self.idle_seconds = idle_seconds
        self.limit = TokenLimit(
            CONSUMERS_MAX, "{holder} has {most} open subscriptions: close some, or end their processes"
        )
        """The subscriptions of each token, those that are being opened included."""
        self._client = client
        self._open: dict[str, RemoteConsumer] = {}
        self._lock = new_lock()

    def open(self, holder: TokenHolder, request: rc.Subscribe) -> rc.Subscribed:
        """Attach a consumer.

        Raises:
            UsageError, UnknownTopic, UnknownSlot, InvalidId: the call is wrong.
            QuotaExceeded: the token has too many open subscriptions.
            WorkerUnavailable: a worker was away.
        """
        self.limit.begin(holder)
        try:
            client = self._client()
            wanted = _wanted(request)
            info = topic_info(client, request.topic)
            attached = client.attach(ServedSubscription, wanted)
            consumer = RemoteConsumer(holder, attached)
        except BaseException:
            self.limit.end(holder)
            raise
        subscription = secrets.token_hex(16)
        with self._lock:
            self._open[subscription] = consumer
        return rc.Subscribed(subscription, info, self.idle_seconds, list(attached.not_delivered))

    def take(self, holder: TokenHolder, ticket: rc.TakeTicket | rc.ClaimTicket) -> pa.RecordBatch:
        """The bundles that a ticket is for, as `frames` has them. Raises as `consume`, and as `Subscription.get` or `claim`."""
        consumer = self._of(holder, ticket.subscription)
        with consumer.heard():
            return consumer.take(ticket) if isinstance(ticket, rc.TakeTicket) else consumer.claim(ticket)

    def consume(self, holder: TokenHolder, request: rc.Consume) -> Any:
        """Carry out a request about an open subscription.

        Raises:
            ClosedError: no such subscription is open for this token; it may have been idle too long, or the server was started anew.
        """
        consumer = self._of(holder, request.subscription)
        with consumer.heard():
            answer = consumer.carry_out(request.act, request.taken)
        if isinstance(request.act, rc.EndSubscription):
            with self._lock:
                ended = self._open.pop(request.subscription, None)
            if ended is not None:
                self.limit.end(holder)
        return answer

    def close_idle(self) -> None:
        """End consumers of which nothing was heard for too long."""
        limit_ns = time.monotonic_ns() - round(self.idle_seconds * SECOND_NS)
        with self._lock:
            idle = [key for key, consumer in self._open.items() if consumer.is_idle(limit_ns)]
            ended = [self._open.pop(key) for key in idle]
        self._close_all(ended)

    def close(self) -> None:
        """End all consumers."""
        with self._lock:
            ended = list(self._open.values())
            self._open.clear()
        self._close_all(ended)

    def _close_all(self, consumers: Iterable[RemoteConsumer]) -> None:
        for consumer in consumers:
            self.limit.end(consumer.holder)
            consumer.close()

    def _of(self, holder: TokenHolder, subscription: str) -> RemoteConsumer:
        with self._lock:
            consumer = self._open.get(subscription)
        if consumer is None or consumer.holder != holder:
            raise ClosedError(
                "this subscription is not open: nothing was heard of its client for too long, or the server was started anew"
            )
        return consumer


def topic_info(client: Client, topic: str) -> TopicInfo:
    """What the node says of a topic. Raises UnknownTopic."""
    topics = client.topics()
    if topic not in topics:
        raise unknown_topic(topic, topics)
    return topics[topic]


def _wanted(request: rc.Subscribe) -> SubscribeRequest:
    options = dict(request.options)
    if unknown := sorted(options.keys() - _OPTIONS):
        raise UsageError(f"a remote subscription has no option {unknown}: it has {sorted(_OPTIONS)}")
    if isinstance(options.get("start"), list):
        options["start"] = BundleId(*options["start"])
    if options.get("columns") is not None:
        options["columns"] = dict(options["columns"])
    return SubscribeRequest.parse(request.topic, request.subscriber, "deliver", options)  # type: ignore[arg-type]


def stored_facts(bundle: StoredBundle) -> rc.StoredFacts:
    """What travels of a stored bundle beside its batches."""
    return rc.StoredFacts(
        *bundle.bundle_id[1:],
        bundle.item_count,
        bundle.ingestion_unix_ns,
        bundle.incarnation,
        bundle.trace_context,
    )


def _delivered(number: int, delivery: Delivery) -> Frame:
    batches = delivery.slots
    facts = rc.DeliveredFacts(
        stored_facts(delivery), number, delivery.delivery_count, delivery.token, _left_ns(delivery)
    )
    return Frame(facts, batches)


def _resolved(delivery: Delivery, outcome: rc.Outcome) -> Ticket:
    if outcome.outcome == "ack":
        return delivery.ack()
    return delivery.reject() if outcome.outcome == "reject" else delivery.defer(outcome.delay_ns / SECOND_NS)


def _left_ns(delivery: Delivery) -> int:
    until = delivery.lease_until_ns
    return 0 if until is None else max(until - time.monotonic_ns(), 1)


def _seconds(timeout_ns: int) -> float:
    return max(0, min(timeout_ns, rc.TIMEOUT_NS_MAX)) / SECOND_NS
