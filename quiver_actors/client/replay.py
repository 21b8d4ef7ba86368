"""Dead letters go back to where they came from.

Reads a dead letter topic as the durable subscriber `SUBSCRIBER`, which remembers what was sent back. Guarantees:
- A letter is acknowledged only after the bundle that it was made of is durable in its origin's topic: at least once, whatever dies when.
- The bundle is what it was before: an envelope of its own stays, what the letter added to it does not, nor the key of an idempotent push.
  It gets a new bundle id, and goes to all subscribers of its topic.
- What is no letter, or not wanted, stays for the next time.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from quiver_actors.base.model import Durability
from quiver_actors.client.bundle import StoredBundle
from quiver_actors.client.client import Client
from quiver_actors.client.delivery import Delivery
from quiver_actors.client.subscription import Subscription
from quiver_actors.errors import DataLost, FormatError, QuiverError
from quiver_actors.store.subscriber.dead_letters import Origin, origin_of, restored

SUBSCRIBER = "replay-dead-letters"
BUNDLES_AT_ONCE = 64
_PATIENCE_SECONDS = 10.0


class OriginKey(NamedTuple):
    """The topic and the subscriber that dead letters come from."""

    topic: str
    subscriber: str


@dataclass
class ReplayReport:
    """Outcome of a replay for the dead letters of one topic, or the outcome that it would have."""

    replayed: Counter[OriginKey] = field(default_factory=Counter)
    not_wanted: int = 0
    """Dead letters of subscribers or topics that were not requested."""
    no_letters: int = 0
    """Bundles of the topic that do not name their origin: they are no dead letters."""
    failed: int = 0
    """Dead letters that could not be sent back and stay stored."""
    error: str = ""
    """Reason why a dead letter could not be sent back; empty: none."""


def letters_pending(client: Client, topic: str) -> Iterator[StoredBundle]:
    """Yield the dead letters that were never sent back. Claims nothing and changes nothing stored."""
    _make_readable(client, topic)
    known = {info.subscriber for infos in client.subscribers(topic).values() for info in infos}
    if SUBSCRIBER in known:
        subscription = client.subscribe(SUBSCRIBER, topic=topic, lease=None)
        try:
            yield from _deliveries(subscription)
        finally:
            subscription.close()
        return
    for core in client.readable(topic):
        yield from client.read(topic, core)


def count_letters(client: Client, topic: str, wants: Callable[[Origin], bool]) -> ReplayReport:
    """Return what `replay` would do now."""
    report = ReplayReport()
    for letter in letters_pending(client, topic):
        origin = _wanted_origin(letter, wants, report)
        if origin is not None:
            report.replayed[OriginKey(origin.topic, origin.subscriber)] += 1
    return report


def replay(
    client: Client,
    topic: str,
    wants: Callable[[Origin], bool],
    tell: Callable[[ReplayReport], None] = lambda _: None,
) -> ReplayReport:
    """Send back the dead letters that are in the topic now and for which `wants` returns True.

    `tell` is called with the report so far. If a topic refuses a bundle, or a worker is away, the call ends: the report counts the
    bundles that were sent back until then, and the other dead letters stay.

    Raises:
        UnknownTopic, WorkerUnavailable, QuiverError: the dead letter topic itself cannot be read.
    """
    report = ReplayReport()
    _make_readable(client, topic)
    with client.subscribe(SUBSCRIBER, topic=topic, start="earliest", lease=None) as subscription:
        for portion in _portions(_deliveries(subscription), wants, report):
            if not _send_back(client, portion, report):
                break
            tell(report)
        subscription.flush()
    return report


def _make_readable(client: Client, topic: str) -> None:
    """Seal the topic if some of what was acknowledged cannot be read before its seal, as where that comes before the sync."""
    if not all(found.is_complete for found in client.readable(topic).values()):
        client.flush(topic)


def _portions(
    letters: Iterator[Delivery], wants: Callable[[Origin], bool], report: ReplayReport
) -> Iterator[list[tuple[Delivery, Origin]]]:
    """The wanted ones, many at a time."""
    wanted = ((letter, origin) for letter in letters if (origin := _wanted_origin(letter, wants, report)) is not None)
    while portion := list(itertools.islice(wanted, BUNDLES_AT_ONCE)):
        yield portion


def _deliveries(subscription: Subscription) -> Iterator[Delivery]:
    """Yield every bundle that the subscriber is owed now, once; bundles that are not resolved go back when the subscription is closed."""
    left = subscription.pending_count()
    while left > 0:
        found = subscription.get_many(min(left, BUNDLES_AT_ONCE), timeout=_PATIENCE_SECONDS)
        if not found:
            return
        left -= len(found)
        yield from found


def _wanted_origin(letter: StoredBundle, wants: Callable[[Origin], bool], report: ReplayReport) -> Origin | None:
    try:
        origin = origin_of(letter.slots)
    except (DataLost, FormatError) as error:
        # The worker knows by now; what can be saved of it comes another time.
        report.failed += 1
        report.error = str(error)
        return None
    if origin is None:
        report.no_letters += 1
    elif wants(origin):
        return origin
    else:
        report.not_wanted += 1
    return None


def _send_back(client: Client, portion: list[tuple[Delivery, Origin]], report: ReplayReport) -> bool:
    """Push a portion and acknowledge what is stored; False if something could not be pushed."""
    failed = report.failed
    for topic in dict.fromkeys(origin.topic for _, origin in portion):
        group = [(letter, origin) for letter, origin in portion if origin.topic == topic]
        try:
            counts = [letter.item_count for letter, _ in group]
            receipts = client.push_many(
                (restored(letter.slots) for letter, _ in group), topic=topic, item_counts=counts
            )
            if any(receipt.durability < Durability.SYNCED for receipt in receipts):
                # Where a receipt comes before the disk has the bundle it has to be sealed.
                client.flush(topic)
        except QuiverError as error:
            report.failed += len(group)
            report.error = f"topic {topic!r}: {error}"
            continue
        for letter, origin in group:
            letter.ack()
            report.replayed[OriginKey(origin.topic, origin.subscriber)] += 1
    return report.failed == failed
