"""A push of a remote client: messages of bundles, each of them one `DoPut` that is answered when its bundles are stored.

The server says that it is ready before a byte of a bundle leaves. So it is known of each push that fails whether nothing was stored, or
whether the bundles may be stored.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, TypeVar

import msgspec
import pyarrow as pa
import pyarrow.flight as fl

from quiver_actors.base.model import ENTRY_BODY_BYTES_MAX, Durability
from quiver_actors.base.protocol.messages import AckRun, TopicInfo
from quiver_actors.base.units import SECOND_NS, format_size
from quiver_actors.client import Receipts
from quiver_actors.client.durations import nanoseconds
from quiver_actors.client.known_topics import recreated_error
from quiver_actors.client.slots import Bundle, TopicSlots
from quiver_actors.errors import (
    BundleTooLarge,
    DurabilityUnknown,
    ProtocolError,
    PushTimeout,
    QuiverError,
    UsageError,
    WorkerUnavailable,
)
from quiver_actors.flight import remote_contract as rc
from quiver_actors.flight.connection import FLIGHT_ERRORS, FlightConnection, backoffs, is_away
from quiver_actors.flight.frames import FRAMES, Frame, framed

MESSAGE_BYTES_MAX = 4 << 20
_GRACE_SECONDS = 5.0
"""The server has the timeout to itself, and so long to say that it is over."""

T = TypeVar("T")


class RemotePush:
    """One call of `push_many`. Not to be shared between threads."""

    def __init__(
        self, connection: FlightConnection, terms: rc.PushTerms, timeout: float, known: dict[str, TopicInfo]
    ) -> None:
        """
        Args:
            terms: its timeout is set here.
            known: what is known of topics, by name; what is learned is put there.

        Raises:
            UsageError: the timeout is not possible.
        """
        self._connection = connection
        self._terms = terms
        self._timeout_ns = nanoseconds("timeout", timeout)
        if self._timeout_ns > rc.TIMEOUT_NS_MAX:
            raise UsageError(f"timeout={timeout!r} is not possible: expected up to {rc.TIMEOUT_NS_MAX // SECOND_NS} s")
        self._known = known
        self._is_sent = False
        """Whether a byte of the message may have reached the server."""
        self._stored_count = 0
        """Bundles of earlier messages."""

    def run(self, bundles: Iterable[tuple[Bundle, int | None]], trace: Mapping[str, str]) -> Receipts:
        """Push bundles with their item counts; all of them belong to the trace. Raises as `RemoteClient.push_many`."""
        topic = self._terms.topic
        receipts = Receipts(topic)
        if topic not in self._known:
            self._known[topic] = self._send(None).topic
        slots = TopicSlots(self._known[topic]).traced(trace)
        for frames in _messages(slots, bundles):
            for run in self._send(framed(frames)).runs:
                acked = AckRun(0, run.segment_seq, run.bundle_index, run.sequence, run.count, run.is_duplicate)
                receipts.add(run.core, acked, Durability(run.durability))
            self._stored_count += len(frames)
            if self._terms.sequence is not None:
                self._terms = msgspec.structs.replace(self._terms, sequence=self._terms.sequence + len(frames))
        return receipts

    def _send(self, message: pa.RecordBatch | None) -> Any:
        """Send one message until it is answered or the timeout is over. None: ask only whether a push would be taken."""
        self._is_sent = False
        deadline_ns = time.monotonic_ns() + self._timeout_ns
        for backoff_seconds in backoffs():
            left_ns = max(deadline_ns - time.monotonic_ns(), 0)
            try:
                return self._attempt(message, left_ns)
            except FLIGHT_ERRORS as error:
                explained = self._connection.explained(error)
                is_last = time.monotonic_ns() + backoff_seconds * SECOND_NS >= deadline_ns
                if not is_away(error) or is_last or (self._is_sent and self._terms.producer is None):
                    raise self._told(explained, error) from error
            time.sleep(backoff_seconds)
        raise AssertionError("the row of waiting times has no end")

    def _attempt(self, message: pa.RecordBatch | None, left_ns: int) -> Any:
        connection = self._connection
        terms = msgspec.json.encode(msgspec.structs.replace(self._terms, timeout_ns=left_ns))
        options = connection.options(left_ns / SECOND_NS + _GRACE_SECONDS)
        writer, reader = connection.client().do_put(fl.FlightDescriptor.for_command(terms), FRAMES, options)
        with contextlib.ExitStack() as ending:
            # Without this the server would wait for more where the call ends early.
            ending.callback(_end, writer)
            ready = _answer(writer, reader, rc.PushReady)
            if message is None:
                return ready
            self._check(ready.topic)
            self._is_sent = True
            _write(writer, message)
            return _answer(writer, reader, rc.PushDone)

    def _check(self, found: TopicInfo) -> None:
        """Raise TopicRecreated, once, where the topic is another one than the bundles were made for."""
        before, self._known[found.name] = self._known[found.name], found
        if before.incarnation != found.incarnation:
            raise recreated_error(found.name)

    def _told(self, explained: QuiverError, error: Exception) -> QuiverError:
        """The error of a push: what the server said, else what is known of the bundles."""
        if not is_away(error):
            return explained
        if not self._is_sent and self._stored_count:
            return DurabilityUnknown(
                f"{explained}; the first {self._stored_count:,} bundles of this push are stored, and none of the others: push those alone"
            )
        if not self._is_sent:
            return WorkerUnavailable(f"{explained}; nothing of this push was stored")
        if isinstance(error, fl.FlightTimedOutError):
            return PushTimeout(f"{explained}; no answer came in time: the bundles of the last message may be stored")
        return DurabilityUnknown(
            f"{explained}; the answer was lost: the bundles of the last message may be stored. Pushed with producer= and sequence= they "
            "can be pushed again, and are stored once"
        )


def _messages(slots: TopicSlots, bundles: Iterable[tuple[Bundle, int | None]]) -> Iterator[list[Frame]]:
    """Bundles as frames, as many as go into one message. One that cannot be pushed raises behind those in front of it."""
    frames: list[Frame] = []
    size_bytes = 0
    try:
        for bundle, item_count in bundles:
            batches = dict(slots.batches_of(bundle))
            bundle_bytes = sum(batch.nbytes for batch in batches.values())
            if bundle_bytes > ENTRY_BODY_BYTES_MAX:
                raise BundleTooLarge(
                    f"a bundle of {format_size(bundle_bytes)} cannot be pushed: expected up to {format_size(ENTRY_BODY_BYTES_MAX)}; "
                    "push its rows as several bundles"
                )
            if frames and (size_bytes + bundle_bytes > MESSAGE_BYTES_MAX or len(frames) >= rc.PUSH_BUNDLES_MAX):
                yield frames
                frames, size_bytes = [], 0
            frames.append(Frame(rc.PushedFacts(item_count), batches))
            size_bytes += bundle_bytes
    except QuiverError:
        if frames:
            yield frames
        raise
    if frames:
        yield frames


def _write(writer: fl.FlightStreamWriter, message: pa.RecordBatch) -> None:
    try:
        writer.write_batch(message)
        writer.done_writing()
    except FLIGHT_ERRORS:
        # The end of the stream says why it could not be written to.
        writer.close()
        raise


def _answer(writer: fl.FlightStreamWriter, reader: fl.FlightMetadataReader, kind: type[T]) -> T:
    found = reader.read()
    if found is None:
        # Raises what has ended the stream.
        writer.close()
        raise ProtocolError(f"the server ended a push without its {kind.__name__}")
    try:
        return msgspec.json.decode(found.to_pybytes(), type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ProtocolError(f"the server answered a push with something else: {error}") from error


def _end(writer: fl.FlightStreamWriter) -> None:
    with contextlib.suppress(*FLIGHT_ERRORS):
        writer.close()
