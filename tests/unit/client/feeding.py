"""A real segment, and a peer that delivers its bundles."""

from __future__ import annotations

import itertools
from array import array
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa

from quiver_actors.base.protocol.messages import (
    ClientMessage,
    Credit,
    Deliver,
    Gap,
    Pending,
    PendingInfo,
    Resolve,
    SegmentOpened,
)
from quiver_actors.client import Delivery, Subscription
from tests.unit.client.peer import Peer, PeerSession

BUNDLES = 200


def batch(value: int, rows: int = 2) -> pa.RecordBatch:
    return pa.record_batch({"id": [value + row for row in range(rows)]})


def open_segment(session: PeerSession, path: Path, segment_seq: int = 4, size_bytes: int | None = None) -> None:
    size = path.stat().st_size if size_bytes is None else size_bytes
    with open(path, "rb") as file:
        session.send_with_descriptors([SegmentOpened(0, "travel", segment_seq, size)], file.fileno())


def deliver(
    session: PeerSession,
    *indexes: int,
    segment_seq: int = 4,
    token: int = 1,
    count: int = 1,
    tag: int = 0,
    until: int = 0,
) -> None:
    counts = array("H", [count] * len(indexes)).tobytes()
    packed = array("I", indexes).tobytes()
    session.send(Deliver("travel", "exporter", segment_seq, packed, token, counts, until, tag))


def gap(number: int = 1, first: int = 10, bundles: int = 5, rows: int = 20, until: int = 0) -> Gap:
    return Gap("travel", "exporter", number, 4, first, first + max(bundles, 1) - 1, bundles, rows, "damaged", until)


class Feeder:
    """Delivers a segment's bundles for as long as there is credit, from the first one that was not acknowledged; says what of a range is
    owed."""

    def __init__(self, peer: Peer, segment: Path) -> None:
        self.peer = peer
        self.segment = segment
        self.resolved: set[int] = set()
        self.next: dict[PeerSession, Iterator[int]] = {}
        self.given: dict[PeerSession, int] = {}
        peer.handlers[Credit] = self.credit
        peer.handlers[Resolve] = self.resolve
        peer.handlers[Pending] = self.tell_pending

    def credit(self, session: PeerSession, message: ClientMessage) -> bool:
        assert isinstance(message, Credit)
        if session not in self.next:
            self.next[session] = iter([n for n in range(BUNDLES) if n not in self.resolved])
            open_segment(session, self.segment)
        given = self.given.get(session, 0)
        found = list(itertools.islice(self.next[session], max(0, message.total - given)))
        self.given[session] = max(given, message.total)
        if found:
            # A token for each portion, as a worker does.
            deliver(session, *found, token=100 + found[0])
        return True

    def resolve(self, session: PeerSession, message: ClientMessage) -> bool:
        assert isinstance(message, Resolve)
        if message.outcome != "return":
            self.resolved.update(array("I", message.bundle_indexes))
        return True

    def tell_pending(self, session: PeerSession, message: ClientMessage) -> bool:
        assert isinstance(message, Pending)
        start = (message.from_segment_seq, message.from_bundle_index)
        end = (message.to_segment_seq, message.to_bundle_index)
        owed = sum(start <= (4, n) < end for n in range(BUNDLES) if n not in self.resolved)
        session.send(PendingInfo(message.tag, 0, 0, 0, 0, 0, 0, -1, 0, owed, False))
        return True


def take(subscription: Subscription, count: int = 1) -> list[Delivery]:
    deliveries = []
    for _ in range(count):
        delivery = subscription.get(60)
        assert delivery is not None, "nothing was delivered in time"
        deliveries.append(delivery)
    return deliveries


def resolved(peer: Peer) -> list[tuple[int, str, int, list[int]]]:
    return [
        (message.segment_seq, message.outcome, message.delay_ns, array("I", message.bundle_indexes).tolist())
        for message in peer.of_type(Resolve)
        if isinstance(message, Resolve) and message.outcome != "return"
    ]
