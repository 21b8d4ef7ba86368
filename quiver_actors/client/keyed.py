"""Pushing as an idempotent producer: bundles carry their number, and what the worker has stored already it does not store again.

Guarantees
- Each bundle is stored once, however often connections, workers and this process are lost, as long as the producer pushes what it is not
  sure of again under the same numbers: within one call that is done here.
- Bundles of one producer go to one worker and stay in the order of their numbers. Should the node come back with another number of workers,
  what is not acknowledged goes to the worker that is the producer's place then, which knows what the others have stored of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from quiver_actors.base.envelope import TraceContext, parse_trace
from quiver_actors.base.model import ENVELOPE_SLOT
from quiver_actors.client.channels import ChannelSet
from quiver_actors.client.exchange import Exchange, Flow, Steps
from quiver_actors.client.grouping import GROUP_BUNDLES_MAX, GROUP_BYTES_MAX
from quiver_actors.client.producer import Producer
from quiver_actors.client.push_channel import PushChannel, PushGroup
from quiver_actors.client.receipts import Receipts
from quiver_actors.client.retry import is_retried
from quiver_actors.client.sender import Sender, SendRules
from quiver_actors.client.slots import Bundle, TopicSlots
from quiver_actors.client.targets import Key
from quiver_actors.errors import DurabilityUnknown, QuiverError, SequenceGap, UsageError
from quiver_actors.store.encoding.entries import BundlePlan, PlannedBundles, plan
from quiver_actors.store.encoding.streams import StreamTable
from quiver_actors.store.staged.keys import check_key, with_key


def pushing_keyed(
    producer: Producer,
    channels: ChannelSet[PushChannel],
    bundles: Iterable[tuple[Bundle, int | None]],
    topic: str,
    key: str | bytes | None,
    name: str | None,
    first: int | None,
    timeout_seconds: float,
    trace_context: TraceContext | None = None,
) -> Steps[Receipts]:
    """Push bundles with their item counts as producer `name`, numbered from `first` on, and wait for all receipts.

    Raises:
        UsageError: a key without its other half, or a key to route by, which only the producer's name may be.
        SequenceGap, SequenceTooOld: the numbers do not follow what is stored.
        And as `Client.push`.
    """
    if name is None or first is None or key is not None:
        raise UsageError(
            "an idempotent push needs both producer and sequence, and goes where its producer's bundles go: no key"
        )
    check_key(name, first)
    trace = parse_trace(trace_context)
    streams = producer.streams(topic)
    sender = Sender(channels, _NumberedRules(producer, name), streams, timeout_seconds, first)
    slots = yield _opening(channels.exchange, sender)
    return (yield from sender.sending(_grouped(streams, slots.traced(trace), bundles, name, first)))


def _opening(exchange: Exchange, sender: Sender) -> Flow[TopicSlots]:
    # Poll first: the connection may be dead, and a bundle sent over a dead connection may or may not have been stored.
    exchange.look()
    return (yield from sender.opening())


def _grouped(
    streams: StreamTable, slots: TopicSlots, bundles: Iterable[tuple[Bundle, int | None]], name: str, first: int
) -> Iterator[PlannedBundles]:
    """Yield groups that each fit into one message; the envelope of each bundle carries its key."""
    group: list[BundlePlan] = []
    group_bytes = 0
    for number, (bundle, item_count) in enumerate(bundles, first):
        batches = dict(slots.batches_of(bundle))
        batches[ENVELOPE_SLOT] = with_key(batches.get(ENVELOPE_SLOT), name, number)
        planned = plan(sorted(batches.items()), streams, item_count)
        if group and (len(group) == GROUP_BUNDLES_MAX or group_bytes + planned.entry_bytes > GROUP_BYTES_MAX):
            yield PlannedBundles(group)
            group, group_bytes = [], 0
        group.append(planned)
        group_bytes += planned.entry_bytes
    if group:
        yield PlannedBundles(group)


class _NumberedRules(SendRules):
    """Bundles go to the worker that is the producer's place, which stores none of their numbers twice.

    Each attempt looks the place up again: it is another one once the node has come back with another number of workers.
    """

    # An unknown producer's window starts at the first number that the worker stores: what follows must not come first.
    awaits_first = True

    def __init__(self, producer: Producer, name: str) -> None:
        self._producer = producer
        self._name = name

    def core(self) -> int:
        return self._producer.core_for(self._name)

    def may_use(self, channel: PushChannel) -> bool:
        return channel.core == self.core()

    def target(self, number: int) -> Key:
        return Key(self._name, number)

    def final_error(self, refusal: QuiverError, *, is_first: bool) -> QuiverError | None:
        """Return the refusal if it is final, or None if the bundles are pushed again.

        Beside the refusals that every push retries, these are a SequenceGap behind bundles that are pushed again, which caused it, and
        DurabilityUnknown, because a bundle that was stored is not stored twice.
        """
        is_behind = isinstance(refusal, SequenceGap) and not is_first
        is_again = is_retried(refusal) or is_behind or isinstance(refusal, DurabilityUnknown)
        return None if is_again else refusal

    def timeout_text(
        self, topic: str, core: int, unsent: PushGroup | None, bundles: int, timeout_seconds: float
    ) -> str:
        return (
            f"bundles of producer {self._name!r} for topic {topic!r}, worker {core} were not acknowledged within {timeout_seconds} s: "
            "push them again under the same numbers, and look at `quiver status`"
        )
