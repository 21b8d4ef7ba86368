"""The datasets that remote clients have opened, each a snapshot that stays mapped here until it is closed or forgotten.

Guarantees
- Scans of one dataset read the same rows. A dataset that is not open any more raises; it is never opened anew behind the caller's back.
- A dataset that was not scanned for `IDLE_SECONDS` is forgotten, so that the room of deleted segments comes back.
- Only the holder of the token that opened a dataset uses it.
"""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from quiver_actors.base.model import BundleId
from quiver_actors.base.rights import TokenHolder
from quiver_actors.base.units import SECOND_NS
from quiver_actors.client import Client
from quiver_actors.errors import ClosedError, ProtocolError, QuotaExceeded
from quiver_actors.flight import remote_contract as rc
from quiver_actors.flight.contract import schema_bytes
from quiver_actors.flight.token_limit import TokenLimit
from quiver_actors.query.snapshot import SEGMENTS_MAX
from quiver_actors.query.span import Bound

if TYPE_CHECKING:
    from quiver_actors.query.dataset import TopicDataset

IDLE_SECONDS = 600.0
DATASETS_MAX = 64
"""Most open datasets of one token: each holds the files of a topic."""


class _OpenedHere:
    def __init__(self, holder: TokenHolder, dataset: TopicDataset) -> None:
        self.holder = holder
        self.dataset = dataset
        self.scans = 0
        """Scans that are under way."""
        self.used_ns = time.monotonic_ns()


class Datasets:
    """The open datasets of one node, by their ids. Several threads may call its methods."""

    def __init__(self, client: Callable[[], Client], idle_seconds: float = IDLE_SECONDS) -> None:
        """`client` returns the client to use."""
        self.idle_seconds = idle_seconds
        self.limit = TokenLimit(
            DATASETS_MAX, "{holder} has {most} open datasets: close some, or end the programs that made them"
        )
        """The datasets of each token, those that are being opened included."""
        self.segments_max = SEGMENTS_MAX
        """Most segments of all open datasets of one token, unless one alone has more: each is a mapping of the server's process."""
        self._client = client
        self._open: dict[str, _OpenedHere] = {}
        self._lock = threading.Lock()

    def open(self, holder: TokenHolder, request: rc.OpenDataset) -> rc.OpenedDataset:
        """Take a snapshot.

        Raises:
            QuotaExceeded: the token has too many open datasets, or too many segments in them.
            As `Client.dataset`.
        """
        self.limit.begin(holder)
        try:
            dataset = self._taken(request)
            key = self._kept(holder, dataset)
        except BaseException:
            self.limit.end(holder)
            raise
        return rc.OpenedDataset(
            key,
            dataset.slot_id,
            schema_bytes(dataset.schema),
            schema_bytes(dataset.full_schema),
            dataset.is_complete,
            dataset.segment_count,
        )

    def _taken(self, request: rc.OpenDataset) -> TopicDataset:
        bounds = request.bounds
        return self._client().dataset(
            request.topic,
            request.slot,
            start=_bound(request.topic, bounds.start_ns, bounds.starts),
            end=_bound(request.topic, bounds.end_ns, bounds.ends),
            where=request.where,
            event_start=request.event_start_ns,
            event_end=request.event_end_ns,
            metadata=request.metadata,
            skip_damaged=request.skip_damaged,
        )

    def _kept(self, holder: TokenHolder, dataset: TopicDataset) -> str:
        """Keep a dataset under a new id. Raises QuotaExceeded: the token has too many segments in its datasets."""
        key = secrets.token_hex(16)
        with self._lock:
            held = sum(opened.dataset.segment_count for opened in self._open.values() if opened.holder == holder)
            if held and held + dataset.segment_count > self.segments_max:
                raise QuotaExceeded(
                    f"{holder} has open datasets of {held:,} segments, and this one has {dataset.segment_count:,}: one token may hold "
                    f"{self.segments_max:,}; close some, or give start= or end="
                )
            self._open[key] = _OpenedHere(holder, dataset)
        return key

    def read(self, holder: TokenHolder, ticket: rc.ScanTicket) -> pa.RecordBatchReader:
        """Read rows of an open dataset.

        Raises:
            ClosedError: it is not open for this token.
            ProtocolError: the condition is no Substrait message.
            As a dataset, while rows are read.
        """
        with self._lock:
            opened = self._open.get(ticket.dataset)
            if opened is None or opened.holder != holder:
                raise ClosedError(
                    f"this dataset is not open: it was closed, or not scanned for {self.idle_seconds:.0f} s, or the server was started "
                    "anew; make another one, which holds what is stored then"
                )
            opened.used_ns = time.monotonic_ns()
        reader = opened.dataset.reader(ticket.columns, _condition(ticket.where))
        return pa.RecordBatchReader.from_batches(reader.schema, self._scanned(opened, reader))

    def close_some(self, holder: TokenHolder, datasets: Sequence[str]) -> None:
        """Forget datasets of this token. Scans of them that are under way go on."""
        with self._lock:
            for key in datasets:
                opened = self._open.get(key)
                if opened is not None and opened.holder == holder:
                    self._forget(key)

    def close_idle(self) -> None:
        """Forget datasets that were not scanned for too long."""
        limit_ns = time.monotonic_ns() - round(self.idle_seconds * SECOND_NS)
        with self._lock:
            for key, opened in list(self._open.items()):
                if not opened.scans and opened.used_ns < limit_ns:
                    self._forget(key)

    def close(self) -> None:
        """Forget all datasets."""
        with self._lock:
            for key in list(self._open):
                self._forget(key)

    def _forget(self, key: str) -> None:
        """Forget one; the caller has the lock."""
        self.limit.end(self._open.pop(key).holder)

    def _scanned(self, opened: _OpenedHere, batches: pa.RecordBatchReader) -> Iterator[pa.RecordBatch]:
        with self._lock:
            opened.scans += 1
        try:
            yield from batches
        finally:
            with self._lock:
                opened.scans -= 1
                opened.used_ns = time.monotonic_ns()


def _bound(topic: str, unix_ns: int | None, places: dict[int, tuple[int, int]]) -> Bound:
    if unix_ns is not None:
        return unix_ns
    return {core: BundleId(topic, core, *place) for core, place in places.items()} or None


def _condition(message: bytes | None) -> pc.Expression | None:
    if message is None:
        return None
    try:
        return pc.Expression.from_substrait(message)
    except (pa.ArrowException, ValueError, TypeError) as error:
        raise ProtocolError(f"the condition of a scan cannot be read: {error}") from error
