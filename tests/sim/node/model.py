"""What must hold whatever happens, in plain dictionaries: who pushed what, what was promised, what was seen.

Checked after every step in which something was learnt:
- a receipt's id belongs to one bundle for ever, and the bundle under an id never changes: no number is used twice;
- receipts of one producer rise on each core;
- what a subscriber is given is byte for byte what was pushed, and belongs to its id;
- what a subscriber has acknowledged durably never comes again to it;
At the end, when everything is at rest:
- every acknowledged bundle reached every subscriber that was durable before its push began, or a gap notice told of it, never both;
- nothing reached a subscriber that was never pushed.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from random import Random

import pyarrow as pa

from quiver_actors.model import BundleId, Receipt

PushKey = tuple[str, int]
"""Producer and its number of the bundle."""


def bundle_of(key: PushKey) -> pa.RecordBatch:
    """The contents of a bundle follow from who pushed it as which."""
    producer, number = key
    random = Random(f"{producer}/{number}")
    rows = random.randint(1, 3)
    filling = [random.randbytes(random.choice((0, 5, 40, 3000 if random.random() < 0.1 else 20))) for _ in range(rows)]
    return pa.record_batch({"producer": [producer] * rows, "number": [number] * rows, "filling": filling})


class Violation(AssertionError):
    """A promise was broken."""


@dataclass
class SubscriberRecord:
    """What one durable subscriber has been told and has said."""

    owed_from: int | None = None
    """Every push that began after this tick of the model is owed to it; None: it is not registered for certain yet."""
    delivered: set[BundleId] = field(default_factory=set)
    resolved_durably: set[BundleId] = field(default_factory=set)
    gaps: set[BundleId] = field(default_factory=set)
    lost_segments: set[tuple[int, int]] = field(default_factory=set)
    """Core and number of those of which nobody knows what was in them."""


class Model:
    """See the module."""

    def __init__(self) -> None:
        self.tick = 0
        self.begun: dict[PushKey, int] = {}
        self.receipts: dict[PushKey, BundleId] = {}
        self.contents: dict[BundleId, PushKey] = {}
        self.subscribers: dict[str, SubscriberRecord] = defaultdict(SubscriberRecord)
        self._newest: dict[tuple[str, int], tuple[int, int]] = {}
        """By producer and core."""
        self._batches: dict[PushKey, pa.RecordBatch] = {}

    def begin(self, keys: list[PushKey]) -> list[pa.RecordBatch]:
        """Bundles that are about to be pushed."""
        self.tick += 1
        for key in keys:
            self.begun[key] = self.tick
        return [self._batch(key) for key in keys]

    def acknowledged(self, keys: list[PushKey], receipts: list[Receipt]) -> None:
        if len(keys) != len(receipts):
            raise Violation(f"{len(receipts)} receipts for {len(keys)} bundles")
        for key, receipt in zip(keys, receipts, strict=True):
            id_ = receipt.bundle_id
            place = (id_.segment_seq, id_.bundle_index)
            before = self._newest.get((key[0], id_.core))
            if before is not None and place <= before:
                raise Violation(f"{key} got {id_}, behind {before} of an earlier push of the same producer")
            self._newest[key[0], id_.core] = place
            self._bind(id_, key)
            self.receipts[key] = id_

    def registered(self, subscriber: str) -> None:
        record = self.subscribers[subscriber]
        if record.owed_from is None:
            record.owed_from = self.tick

    def delivered(self, subscriber: str, id_: BundleId, batch: pa.RecordBatch) -> None:
        record = self.subscribers[subscriber]
        if id_ in record.resolved_durably:
            raise Violation(f"{subscriber} gets {id_} again, which it has resolved durably")
        if id_ in record.gaps:
            raise Violation(f"{subscriber} gets {id_}, of which a gap notice told")
        key = (batch.column("producer")[0].as_py(), batch.column("number")[0].as_py())
        if key not in self.begun:
            raise Violation(f"{subscriber} gets {id_}, which nobody pushed: {key}")
        if not batch.equals(self._batch(key)):
            raise Violation(f"{subscriber} gets {id_} with other contents than {key} had")
        self._bind(id_, key)
        record.delivered.add(id_)

    def told(
        self, subscriber: str, ids: list[BundleId], whole_segment: tuple[int, int] | None, *, may_be_promised: bool
    ) -> None:
        """A gap notice has come; after a lost connection it may come again.

        Args:
            may_be_promised: a disk has failed, so that even bundles that were acknowledged can be lost.
        """
        record = self.subscribers[subscriber]
        promised = [id_ for id_ in self.receipts.values() if id_ in ids or (id_.core, id_.segment_seq) == whole_segment]
        if promised and not may_be_promised:
            raise Violation(
                f"{subscriber} is told that {promised[:5]} are lost, which were acknowledged, and no disk failed"
            )
        record.gaps.update(ids)
        if whole_segment is not None:
            record.lost_segments.add(whole_segment)

    def resolved(self, subscriber: str, id_: BundleId) -> None:
        self.subscribers[subscriber].resolved_durably.add(id_)

    def missing(self, subscriber: str) -> list[PushKey]:
        """Acknowledged bundles that are owed to a subscriber and that it has neither got nor been told of."""
        record = self.subscribers[subscriber]
        if record.owed_from is None:
            return []
        had = record.delivered | record.gaps
        return [key for key, id_ in self.receipts.items() if self.begun[key] > record.owed_from and id_ not in had]

    def _bind(self, id_: BundleId, key: PushKey) -> None:
        other = self.contents.setdefault(id_, key)
        if other != key:
            raise Violation(f"{id_} is {key} and {other}")

    def _batch(self, key: PushKey) -> pa.RecordBatch:
        found = self._batches.get(key)
        if found is None:
            found = self._batches[key] = bundle_of(key)
        return found
