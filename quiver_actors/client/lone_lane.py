"""The short way of a push that travels alone over one connection: encoded, sent as one struct, and its one answer read by the thread that
pushes.

A lane lasts as long as its connection. A push may take it while nothing else is under way on the connection and no other thread waits for
answers; it then reads for everybody, as any other thread that waits (`exchange`). Everything else goes the general way (`sender`), and so
does what is left to do after a refusal that another attempt may mend, or after a loss of the connection: at least once, never lost
unannounced.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial

from quiver_actors.base.model import BundleId, Durability, Receipt
from quiver_actors.base.protocol.lone import LONE_PUSHES
from quiver_actors.base.protocol.messages import AckRun
from quiver_actors.base.units import SECOND_NS
from quiver_actors.client.archiving import archiving
from quiver_actors.client.exchange import Exchange, Flow, Waiter
from quiver_actors.client.node_view import WorkerDirectory
from quiver_actors.client.push_channel import LoneGroup, PushChannel
from quiver_actors.client.receipts import Receipts
from quiver_actors.client.retry import is_retried
from quiver_actors.client.slots import Bundle, TopicSlots
from quiver_actors.errors import PushTimeout, QuiverError
from quiver_actors.store.encoding.lone import lone_entry
from quiver_actors.store.encoding.streams import StreamTable

TIMEOUT_SECONDS_MAX = 1_000_000
"""A call with a longer timeout goes the general way: the struct has 32 bits for milliseconds."""

_MS_PER_SECOND = 1000
_DURABILITIES = {int(durability): durability for durability in Durability}
# Without the constructors' Python code.
_new_id: Callable[[tuple[object, ...]], BundleId] = partial(tuple.__new__, BundleId)
_new_receipt: Callable[[tuple[object, ...]], Receipt] = partial(tuple.__new__, Receipt)


def unacknowledged_text(topic: str, core: int, bundles: int, timeout_seconds: float) -> str:
    """Return the message of PushTimeout for bundles that were sent."""
    return (
        f"{bundles} bundles for topic {topic!r}, worker {core} were not acknowledged within {timeout_seconds} s: they may still become "
        "durable; push them again if they must not be missing, and look at `quiver status`"
    )


class LoneLane:
    """The short way to one topic over the present connection of a channel. May be used by any thread; one push at a time takes it."""

    def __init__(
        self,
        exchange: Exchange,
        directory: WorkerDirectory,
        channel: PushChannel,
        slots: TopicSlots,
        streams: StreamTable,
    ) -> None:
        self._exchange = exchange
        self._directory = directory
        self._channel = channel
        self._cores = directory.push_cores
        self._generation, self._number = channel.generation, channel.number
        self._slot_id = slots.only_slot
        self._streams = streams
        self._group = LoneGroup(streams.topic)
        self._waiter = Waiter()
        self._is_used = False
        """Whether a push is on it. Stays true after one that was given up, as its answer may still come."""

    @property
    def is_open(self) -> bool:
        """Whether the lane leads where a push without a key goes, and a worker that knows it is there."""
        channel = self._channel
        is_present = channel.generation == self._generation and self._directory.push_cores is self._cores
        is_known = channel.is_open and bool(channel.features & LONE_PUSHES) and channel.has_lone_lane
        return is_present and is_known and not self._is_used

    def push(self, bundle: Bundle, item_count: int | None, timeout_seconds: float) -> Receipt | float:
        """Store one bundle, or return the seconds that are left of the timeout: it has to go the general way, and was perhaps stored.

        Raises:
            InvalidBundle: the schema cannot be pushed.
            PushTimeout: not acknowledged in time; it may still become durable.
            QuiverError: what the worker refused it for.
        """
        exchange, waiter, channel = self._exchange, self._waiter, self._channel
        if type(timeout_seconds) not in (int, float) or not 0 < timeout_seconds < TIMEOUT_SECONDS_MAX:
            return timeout_seconds
        lone = lone_entry(bundle, self._slot_id, self._streams, item_count)
        if lone is None:
            return timeout_seconds
        deadline_ns = time.monotonic_ns() + int(timeout_seconds * SECOND_NS)
        patience_ms = int(timeout_seconds * _MS_PER_SECOND) or 1
        is_midway = False
        try:
            with exchange.lock:
                # `is_open` without the questions that `send_lone` asks, and those that a new connection alone changes.
                is_present = channel.generation == self._generation and self._directory.push_cores is self._cores
                if self._is_used or not is_present or not exchange.begin_poll(waiter):
                    return timeout_seconds
                is_midway = self._is_used = True
                tag = channel.send_lone(self._group, lone, patience_ms)
                if not tag:
                    self._is_used = False
                    exchange.end_poll(waiter, -1)
                    return timeout_seconds
                is_midway = False
            return self._answer(tag, deadline_ns, timeout_seconds)
        except BaseException as error:
            self._broken_off(is_midway=is_midway or not isinstance(error, QuiverError))
            raise

    def _answer(self, tag: int, deadline_ns: int, timeout_seconds: float) -> Receipt | float:
        """Wait for the answer to a push: at first as the thread that polls, and if something else comes, as all threads do."""
        exchange, waiter, channel, group = self._exchange, self._waiter, self._channel, self._group
        waiter.ready = exchange.poll(timeout_seconds)
        with exchange.lock:
            if exchange.end_poll(waiter, self._number):
                ack = channel.receive_lone(tag)
                if ack is not None:
                    self._is_used = False
                    _, _, _, durability, bundle_index, _, segment_seq, sequence = ack
                    bundle_id = _new_id((group.topic, channel.core, segment_seq, bundle_index))
                    return _new_receipt((bundle_id, sequence, _DURABILITIES[durability], False))
        exchange.run(self._answered(deadline_ns, timeout_seconds))
        acks, error, archives_as = group.acks.copy(), group.error, group.archives_as
        group.begin()
        self._is_used = False
        if acks:
            ((run, durability),) = acks
            if archives_as:
                return self._archived(run, archives_as, max(0.0, (deadline_ns - time.monotonic_ns()) / SECOND_NS))
            return self._receipt(run.segment_seq, run.bundle_index, run.sequence, durability)
        if error is not None and not is_retried(error):
            raise error
        return max(0.0, (deadline_ns - time.monotonic_ns()) / SECOND_NS)

    def _archived(self, run: AckRun, archives_as: str, timeout_seconds: float) -> Receipt:
        """Wait for the archive: the worker did not take the push the short way, as its topic's durability is `archived`."""
        core, receipts = self._channel.core, Receipts(self._group.topic)
        receipts.add(core, run, Durability.SYNCED)
        receipts.archives_as[core] = archives_as
        waiting = archiving(self._directory.run_dir, receipts, timeout_seconds, is_progress_waited_for=False)
        self._exchange.run(waiting)
        return receipts[0]

    def _answered(self, deadline_ns: int, timeout_seconds: float) -> Flow[None]:
        group = self._group
        while not (group.is_acked or group.is_lost or group.error is not None):
            if time.monotonic_ns() >= deadline_ns:
                raise PushTimeout(unacknowledged_text(group.topic, self._channel.core, 1, timeout_seconds))
            yield deadline_ns

    def _broken_off(self, *, is_midway: bool) -> None:
        """A push has ended without an answer. `is_midway`: by an interrupt, so that what it did on the connection cannot be relied on."""
        exchange = self._exchange
        with exchange.lock:
            exchange.end_poll(self._waiter, -1)
            if is_midway and self._channel.number >= 0:
                self._channel.break_off()
            exchange.notify()

    def _receipt(self, segment_seq: int, bundle_index: int, sequence: int, durability: int) -> Receipt:
        place = self._group.topic, self._channel.core, segment_seq, bundle_index
        return _new_receipt((_new_id(place), sequence, _DURABILITIES[durability], False))
