"""The subscriber of a campaign: compares every bundle with what was pushed, writes it down, acknowledges, and writes down what of that is
durable (`book` has the lines)."""

from __future__ import annotations

import contextlib
import os
import select

import pyarrow as pa

import quiver_actors
from quiver_actors.base.model import ENVELOPE_SLOT, BundleId
from quiver_actors.client import Client, Delivery, GapNotice
from quiver_actors.client.delivery import Ticket
from quiver_actors.errors import ClosedError, QuiverError
from tests.crash.book import UNKNOWN_END
from tests.crash.bundles import TOPIC, bundle_of

CONNECT_TIMEOUT_SECONDS = 60.0
_TICKETS_MAX = 64


def consume(run_dir: str, subscriber: str, journal: int) -> None:
    """Consume for ever; an error of Quiver is written to the descriptor `journal`, then a new connection is made."""
    while True:
        try:
            _consume(run_dir, subscriber, journal)
        except QuiverError as error:
            os.write(journal, f"failed {error.code}\n".encode())
            select.select([], [], [], 0.1)


def take_for_ever(client: Client, subscriber: str, journal: int) -> None:
    """The same with a client that there is. Raises ClosedError: it was closed."""
    while True:
        try:
            _take(client, subscriber, journal)
        except ClosedError:
            raise
        except QuiverError as error:
            os.write(journal, f"failed {error.code}\n".encode())
            select.select([], [], [], 0.1)


def _consume(run_dir: str, subscriber: str, journal: int) -> None:
    # A node that was killed and is started beside other work takes its time.
    with quiver_actors.connect(run_dir, timeout=CONNECT_TIMEOUT_SECONDS) as client:
        _take(client, subscriber, journal)


def _take(client: Client, subscriber: str, journal: int) -> None:
    tickets: list[tuple[BundleId, Ticket]] = []
    with client.subscribe(subscriber, topic=TOPIC, start="earliest", gaps="deliver") as items:
        while True:
            item = items.get(timeout=0.2)
            if isinstance(item, GapNotice):
                os.write(journal, gap_line(item).encode())
            elif item is not None:
                os.write(journal, got_line(item).encode())
                tickets.append((item.bundle_id, item.ack()))
            if tickets and (item is None or len(tickets) >= _TICKETS_MAX):
                os.write(journal, "".join(durable_line(id_) for id_, ticket in tickets if is_durable(ticket)).encode())
                tickets.clear()


def register(run_dir: str, subscribers: list[str]) -> None:
    """Register the subscribers: everything from now on is owed to them."""
    with quiver_actors.connect(run_dir, timeout=CONNECT_TIMEOUT_SECONDS) as client:
        for subscriber in subscribers:
            client.subscribe(subscriber, topic=TOPIC, start="earliest").close()


def is_durable(ticket: Ticket) -> bool:
    """Whether the worker has said so. If not, the bundle may come again."""
    with contextlib.suppress(QuiverError):
        ticket.wait()
        return True
    return False


def got_line(delivery: Delivery) -> str:
    first = delivery[0]
    producer, number = first.column("producer")[0].as_py(), first.column("number")[0].as_py()
    expected = bundle_of(producer, number)
    same = set(expected) == {slot for slot in delivery.slots if slot != ENVELOPE_SLOT} and all(
        _is_same(delivery[slot], batch) for slot, batch in expected.items()
    )
    return f"got {'same' if same else 'DIFFERENT'} {producer} {number} {_place(delivery.bundle_id)}\n"


def _is_same(found: pa.RecordBatch, pushed: pa.RecordBatch) -> bool:
    # A dictionary may have been unified with others.
    return found.schema.equals(pushed.schema) and (found.equals(pushed) or found.to_pylist() == pushed.to_pylist())


def durable_line(bundle_id: BundleId) -> str:
    return f"durable {_place(bundle_id)}\n"


def gap_line(notice: GapNotice) -> str:
    last = UNKNOWN_END if notice.bundle_count is None else notice.bundle_index_last
    return f"gap {notice.core} {notice.segment_seq} {notice.bundle_index_first} {last} {notice.reason}\n"


def _place(bundle_id: BundleId) -> str:
    return f"{bundle_id.core} {bundle_id.segment_seq} {bundle_id.bundle_index}"
