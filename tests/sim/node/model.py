"""What must hold whatever happens, in plain dictionaries: who pushed what, what was promised, what was seen.

Checked after every step in which something was learnt:
- a receipt's id belongs to one bundle for ever, and the bundle under an id never changes: no number is used twice;
- receipts of one producer rise on each core;
- what a subscriber is given is byte for byte what was pushed, and belongs to its id;
- what a subscriber has acknowledged durably never comes again to it, and no gap notice tells of it;
- a gap notice tells of acknowledged bundles only where a disk has failed, bits have rotted or room was made, or where another user moved
  the subscriber before it was registered by its owner; no two different ones tell a subscriber of the same bundle, and what was told of
  never comes;
- of a numbered push, and of a transaction, each bundle is stored once;
- nothing of a transaction is seen before its commit was asked for, or after its abort was told.
At the end, when everything is at rest:
- every acknowledged or committed bundle reached every subscriber that was durable before its push began, or a gap notice told of it;
- of a transaction whose outcome its client never learnt, each subscriber has all or nothing;
- nothing reached a subscriber that was never pushed.

A model is of one life of one topic: what a deleted topic held must not be seen in the next one of its name.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from random import Random

import pyarrow as pa

from quiver_actors.base.model import BundleId, Receipt
from quiver_actors.client.gaps import GapNotice

PushKey = tuple[str, int]
"""Producer and its number of the bundle."""
_DROPPED = "dropped"
"""The reason of a notice that tells what a seek has skipped. No owner of a subscriber seeks in these runs: a guest does, where it may."""


FILLERS = ("fill-1", "fill-2")
"""Producers of large bundles, which bring a topic to its limit."""


def bundle_of(key: PushKey) -> pa.RecordBatch:
    """The contents of a bundle follow from who pushed it as which."""
    producer, number = key
    random = Random(f"{producer}/{number}")
    rows = random.randint(1, 3)
    is_large = producer.startswith(FILLERS)
    sizes = (2000, 3000) if is_large else (0, 5, 40, 3000 if random.random() < 0.1 else 20)
    filling = [random.randbytes(random.choice(sizes)) for _ in range(rows)]
    return pa.record_batch({"producer": [producer] * rows, "number": [number] * rows, "filling": filling})


class Violation(AssertionError):
    """A promise was broken."""


class Outcome(Enum):
    """State of a transaction as its client knows it."""

    OPEN = "open"
    ASKED = "asked"
    COMMITTED = "committed"
    ABORTED = "aborted"


@dataclass
class SubscriberRecord:
    """What one durable subscriber has been told and has said."""

    owed_from: int | None = None
    """Every push that began after this tick of the model is owed to it; None: it is not registered for certain yet."""
    delivered: set[BundleId] = field(default_factory=set)
    delivered_keys: set[PushKey] = field(default_factory=set)
    resolved_durably: set[BundleId] = field(default_factory=set)
    settled: set[BundleId] = field(default_factory=set)
    """Bundles that were resolved, or are known not to be owed any more."""
    gaps: dict[BundleId, tuple[int, int | None]] = field(default_factory=dict)
    """Lost bundles, with the place of the notice that named them: first bundle and count."""
    open_ends: dict[tuple[int, int], int] = field(default_factory=dict)
    """Index from which on all bundles of a segment are lost, nobody knows how many, by core and segment number."""

    def knows_lost(self, id_: BundleId) -> bool:
        """Whether a notice has told of it."""
        open_end = self.open_ends.get((id_.core, id_.segment_seq))
        return id_ in self.gaps or (open_end is not None and id_.bundle_index >= open_end)


class Model:
    """The rules that must hold whatever happens, and what is known of pushes, promises and deliveries."""

    def __init__(self) -> None:
        self.tick = 0
        self.begun: dict[PushKey, int] = {}
        self.receipts: dict[PushKey, BundleId] = {}
        self.contents: dict[BundleId, PushKey] = {}
        self.subscribers: dict[str, SubscriberRecord] = defaultdict(SubscriberRecord)
        self.single: dict[PushKey, BundleId | None] = {}
        """Pushes that must be stored once at most, with the place where they were seen."""
        self.transactions: dict[str, Outcome] = {}
        self._parts: dict[str, list[PushKey]] = defaultdict(list)
        self._transaction_of: dict[PushKey, str] = {}
        self._newest: dict[tuple[str, int], tuple[int, int]] = {}
        """Newest bundle by producer and core."""
        self._batches: dict[PushKey, pa.RecordBatch] = {}

    def begin(self, keys: list[PushKey]) -> list[pa.RecordBatch]:
        """Bundles that are about to be pushed."""
        self.tick += 1
        for key in keys:
            self.begun.setdefault(key, self.tick)
        return [self._batch(key) for key in keys]

    def begin_single(self, keys: list[PushKey]) -> list[pa.RecordBatch]:
        """The same, of a numbered push; may be repeated."""
        self.single.update((key, None) for key in keys if key not in self.single)
        return self.begin(keys)

    def begin_part(self, txn_id: str, keys: list[PushKey]) -> list[pa.RecordBatch]:
        """The same, into a transaction."""
        self.transactions.setdefault(txn_id, Outcome.OPEN)
        self._parts[txn_id] += keys
        self._transaction_of.update((key, txn_id) for key in keys)
        return self.begin_single(keys)

    def strayed(self, keys: Iterable[PushKey]) -> None:
        """Begun when there was another topic of this name: may come here, or not."""
        self.begun.update((key, 0) for key in keys)

    def acknowledged(self, keys: list[PushKey], receipts: Sequence[Receipt]) -> None:
        if len(keys) != len(receipts):
            raise Violation(f"{len(receipts)} receipts for {len(keys)} bundles")
        for key, receipt in zip(keys, receipts, strict=True):
            id_ = receipt.bundle_id
            place = (id_.segment_seq, id_.bundle_index)
            before = self._newest.get((key[0], id_.core))
            if not receipt.duplicate:
                # What a power loss has left of an unacknowledged push stays where it is: what it took is stored behind that.
                if before is not None and place <= before:
                    raise Violation(f"{key} got {id_}, behind {before} of an earlier push of the same producer")
                self._newest[key[0], id_.core] = place
            self._bind(id_, key)
            self.receipts[key] = id_

    def registered(self, subscriber: str) -> None:
        record = self.subscribers[subscriber]
        if record.owed_from is None:
            record.owed_from = self.tick

    def delivered(self, subscriber: str, id_: BundleId, batch: pa.RecordBatch, *, may_be_dropped: bool = False) -> None:
        """
        Args:
            may_be_dropped: its worker may have made room after it gave it away: then an acknowledgement that was lost with a connection is
                answered by that, and what the client has in its queue is as good as ever.
        """
        record = self.subscribers[subscriber]
        if id_ in (record.resolved_durably if may_be_dropped else record.settled):
            raise Violation(f"{subscriber} gets {id_} again, which it has resolved durably")
        if record.knows_lost(id_):
            raise Violation(f"{subscriber} gets {id_}, of which a gap notice told")
        key = (batch.column("producer")[0].as_py(), batch.column("number")[0].as_py())
        if key not in self.begun:
            raise Violation(f"{subscriber} gets {id_}, which nobody pushed: {key}")
        if not batch.equals(self._batch(key)):
            raise Violation(f"{subscriber} gets {id_} with other contents than {key} had")
        self._check_transaction(subscriber, id_, key)
        self._bind(id_, key)
        record.delivered.add(id_)
        record.delivered_keys.add(key)

    def _check_transaction(self, subscriber: str, id_: BundleId, key: PushKey) -> None:
        outcome = self._outcome(key)
        if outcome in (Outcome.OPEN, Outcome.ABORTED):
            raise Violation(f"{subscriber} gets {id_}, {key} of a transaction that is {outcome.value}")

    def told(self, subscriber: str, notice: GapNotice, *, may_be_promised: bool) -> None:
        """A gap notice has come; after a lost connection the same may come again.

        Args:
            may_be_promised: even bundles that were acknowledged can be lost of that segment: see `Machine.may_lose`.
        """
        record = self.subscribers[subscriber]
        first, count = notice.bundle_index_first, notice.bundle_count
        ids = [BundleId(notice.topic, notice.core, notice.segment_seq, first + index) for index in range(count or 0)]
        segment = (notice.core, notice.segment_seq)
        told = set(ids)
        promised = {
            key: id_
            for key, id_ in self.receipts.items()
            if id_ in told or (count is None and (id_.core, id_.segment_seq) == segment and id_.bundle_index >= first)
        }
        false = [id_ for key, id_ in promised.items() if notice.reason != _DROPPED or self._is_owed(record, key)]
        if false and not may_be_promised:
            raise Violation(f"{subscriber} is told that {false[:5]} are lost ({notice.reason}), for no reason")
        for id_ in (*ids, *promised.values()):
            if record.gaps.get(id_, (first, count)) != (first, count):
                raise Violation(f"{subscriber} is told of {id_} by two notices: {record.gaps[id_]}, {(first, count)}")
        if resolved := record.resolved_durably & told:
            raise Violation(f"{subscriber} is told that {min(resolved)} is lost, which it has resolved durably")
        record.gaps.update((id_, (first, count)) for id_ in (*ids, *promised.values()))
        if count is None:
            record.open_ends[segment] = first

    def resolved(self, subscriber: str, id_: BundleId, *, is_heard: bool) -> None:
        """It was acknowledged, and will not come again.

        Args:
            is_heard: the worker knows by whom; else it may have dropped it before, with a notice.
        """
        record = self.subscribers[subscriber]
        record.settled.add(id_)
        if is_heard:
            record.resolved_durably.add(id_)

    def missing(self, subscriber: str) -> list[PushKey]:
        """What was acknowledged or committed, is owed to a subscriber, and it has neither got nor been told of."""
        record = self.subscribers[subscriber]
        if record.owed_from is None:
            return []
        owed = [key for key in self.begun if self._is_owed(record, key) and key not in record.delivered_keys]
        missing = [key for key in owed if key in self.receipts and not record.knows_lost(self.receipts[key])]
        if not self._knows_of_less(record):
            told = self._told_keys(record)
            missing += [key for key in owed if key not in told and self._outcome(key) is Outcome.COMMITTED]
        return missing

    def _is_owed(self, record: SubscriberRecord, key: PushKey) -> bool:
        """Whether the push began after the subscriber was registered for certain."""
        return record.owed_from is not None and self.begun[key] > record.owed_from

    def _outcome(self, key: PushKey) -> Outcome | None:
        return self.transactions.get(self._transaction_of.get(key, ""))

    def _told_keys(self, record: SubscriberRecord) -> set[PushKey]:
        return {self.contents[id_] for id_ in record.gaps if id_ in self.contents}

    def torn(self, subscriber: str) -> list[str]:
        """Transactions of which a subscriber has a part only, and no notice of the rest."""
        record = self.subscribers[subscriber]
        if record.owed_from is None or self._knows_of_less(record):
            return []
        seen = record.delivered_keys | self._told_keys(record)
        return [
            txn_id
            for txn_id, keys in self._parts.items()
            if all(self._is_owed(record, key) for key in keys) and len({key in seen for key in keys}) > 1
        ]

    def _knows_of_less(self, record: SubscriberRecord) -> bool:
        """Whether it was told of bundles that nobody can name: parts of transactions may be among them."""
        return bool(record.open_ends or any(id_ not in self.contents for id_ in record.gaps))

    def counted(self) -> Counter[str]:
        """Return counts of what was seen."""
        outcomes = Counter(f"transactions_{outcome.value}" for outcome in self.transactions.values())
        subscribers = self.subscribers.values()
        return outcomes + Counter(
            acknowledged=len(self.receipts),
            delivered=sum(len(record.delivered) for record in subscribers),
            resolved=sum(len(record.resolved_durably) for record in subscribers),
            told_lost=sum(len(record.gaps) for record in subscribers),
        )

    def _bind(self, id_: BundleId, key: PushKey) -> None:
        other = self.contents.setdefault(id_, key)
        if other != key:
            raise Violation(f"{id_} is {key} and {other}")
        if key in self.single and self.single[key] not in (None, id_):
            raise Violation(f"{key} is stored twice: as {self.single[key]} and {id_}")
        if key in self.single:
            self.single[key] = id_

    def _batch(self, key: PushKey) -> pa.RecordBatch:
        found = self._batches.get(key)
        if found is None:
            found = self._batches[key] = bundle_of(key)
        return found
