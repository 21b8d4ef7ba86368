"""A node of this host, through its workers' sockets.

Holds of streaming readers are kept open here. One that nobody looked through for a minute is closed: its reader is gone, and the
subscriber's time to live runs from then on.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence

import pyarrow as pa

from quiver_actors.client import Client
from quiver_actors.client.hold import HeldCore, Hold
from quiver_actors.errors import (
    ClosedError,
    NotStored,
    QuiverError,
    TopicDeleted,
    TopicRecreated,
    UnknownSubscriber,
    UnknownTopic,
    WorkerUnavailable,
)
from quiver_actors.flight.contract import (
    Acknowledge,
    AskSlotRows,
    AskWeights,
    ConfirmGap,
    Contents,
    CoreContents,
    DropRun,
    HoldTerms,
    Look,
    ReadTicket,
    Schemas,
    SlotRows,
    Weights,
    schema_bytes,
    schema_of,
)
from quiver_actors.flight.rows import read_rows
from quiver_actors.model import BundleId
from quiver_actors.protocol.messages import SegmentInfo
from quiver_actors.segment.reader import SegmentReader
from quiver_actors.transactions import Token
from quiver_actors.transactions.states import StageState
from quiver_actors.units import SECOND_NS

HOLD_IDLE_SECONDS = 60.0
CHECK_SECONDS = 60.0
_CHECK_LOOK_SECONDS = 0.02
_PREPARING_SECONDS = 10.0


class LocalNode:
    """See the module. Methods may be called by several threads."""

    def __init__(self, name: str, client: Callable[[], Client]) -> None:
        """`client` returns the client to use; asked anew for each request, so that it may be replaced."""
        self.name = name
        self._client = client
        self._holds: dict[tuple[str, str], _KeptHold] = {}
        self._lock = threading.Lock()

    @property
    def data_dir(self) -> str:
        """Where the node keeps its data: for what is to be found by its workers and by programs of their user."""
        return self._client().data_dir

    def look(self, request: Look) -> Contents:
        client = self._client()
        if request.hold is not None:
            return self._look_held(client, request, request.hold)
        if request.flush:
            client.flush(request.topic)
        segments = self._checked_segments(client, request.topic)
        cores = [CoreContents(core, infos) for core, infos in segments.items()]
        return Contents(self.name, _slots_of(client, request.topic), cores)

    def _checked_segments(self, client: Client, topic: str) -> dict[int, list[SegmentInfo]]:
        """Those that were found at the workers' start are read through in the background first: what is damaged is not offered."""
        deadline = time.monotonic() + CHECK_SECONDS
        while True:
            segments = client.segments(topic)
            unchecked = sum(not info.is_checked for infos in segments.values() for info in infos)
            if not unchecked:
                return segments
            if time.monotonic() > deadline:
                raise WorkerUnavailable(
                    f"node {self.name}: {unchecked} segments of topic {topic!r} are still being checked after {CHECK_SECONDS:.0f} s; "
                    "the node has just been started: try again"
                )
            time.sleep(_CHECK_LOOK_SECONDS)

    def _look_held(self, client: Client, request: Look, terms: HoldTerms) -> Contents:
        key = (request.topic, terms.subscriber)
        slots = _slots_of(client, request.topic)
        with self._lock:
            kept = self._holds.get(key)
            if kept is None:
                known_on = _known_on(client, request.topic, terms.subscriber)
                if terms.needs_all and (lost := _lost_for(client, request.topic, terms, known_on)):
                    return Contents(self.name, slots, lost)
                kept = self._holds[key] = _KeptHold(client, request.topic, terms, known_on)
        with kept.lock:
            # It may have been closed as idle between the two locks: then it opens again, and must be found to be closed.
            if self._holds.setdefault(key, kept) is not kept:
                return self._look_held(client, request, terms)
            try:
                found = kept.look(request.flush)
            except (UnknownSubscriber, TopicDeleted, TopicRecreated):
                # An operator has dropped it, or its topic, under the hold; what is there by now takes another one.
                self._holds.pop(key, None)
                kept.hold.close()
                raise
            cores = [_held_contents(core, held, is_new=core not in kept.known_on) for core, held in found.items()]
            kept.known_on.update(found)
        self.close_idle_holds()
        return Contents(self.name, slots, cores)

    def schemas(self, topic: str) -> Schemas:
        seen: set[tuple[int, bytes]] = set()
        by_slot: dict[int, list[bytes]] = {}
        listed = {core: [info.segment_seq for info in infos] for core, infos in self._client().segments(topic).items()}
        for _, _, reader in self._readers(topic, listed):
            for stream in reader.streams:
                key = (stream.slot_id, stream.schema_fingerprint)
                if key not in seen:
                    seen.add(key)
                    by_slot.setdefault(stream.slot_id, []).append(schema_bytes(reader.schema(stream.stream_id)))
        return Schemas(by_slot)

    def slot_rows(self, request: AskSlotRows) -> SlotRows:
        by_core: dict[int, dict[int, dict[int, int]]] = {}
        for core, segment_seq, reader in self._readers(request.topic, request.segments):
            rows = by_core.setdefault(core, {}).setdefault(segment_seq, {})
            for stream in reader.streams:
                rows[stream.slot_id] = rows.get(stream.slot_id, 0) + stream.row_count
        return SlotRows(by_core)

    def _readers(self, topic: str, segments: Mapping[int, list[int]]) -> Iterator[tuple[int, int, SegmentReader]]:
        """Core, number and reader of those that are still there: everybody may be done with one since it was listed."""
        client = self._client()
        for core, segment_seqs in segments.items():
            for segment_seq in segment_seqs:
                with contextlib.suppress(NotStored):
                    yield core, segment_seq, client.read_segment(core, topic, segment_seq)

    def weights(self, request: AskWeights) -> Weights:
        reader = self._client().read_segment(request.core, request.topic, request.segment_seq)
        indexes = range(reader.bundle_count)
        slots = None if request.slots is None else tuple(request.slots)
        rows = [sum(batch.num_rows for batch in reader.bundle(index, slots).values()) for index in indexes]
        return Weights(
            rows,
            [reader.byte_count(index) or 0 for index in indexes],
            [reader.ingestion_ts(index) or 0 for index in indexes],
        )

    def acknowledge(self, request: Acknowledge) -> None:
        bundle_id = BundleId(request.topic, request.core, request.segment_seq, request.bundle_index)
        self._client().ack_through(bundle_id, subscriber=request.subscriber)

    def confirm_gap(self, request: ConfirmGap) -> None:
        with self._lock:
            kept = self._holds.get((request.topic, request.subscriber))
        if kept is not None:
            with kept.lock:
                kept.hold.confirm(request.core, request.notice)

    def publish(self, tokens: Sequence[str]) -> None:
        # The decision's tokens for this node are all in one request: what else it holds of the transaction has lost.
        client, decoded = self._client(), [Token.decode(token) for token in tokens]
        client.publish(decoded, drop_others=True)
        for run in {(token.topic, token.txn_id, token.epoch) for token in decoded}:
            # Workers without a winner were not asked yet. What cannot be dropped now goes after its time to live.
            with contextlib.suppress(QuiverError):
                _drop_run_once(client, DropRun(*run))

    def drop_run(self, request: DropRun) -> None:
        client = self._client()
        deadline = time.monotonic() + _PREPARING_SECONDS
        while is_preparing := _drop_run_once(client, request):
            if time.monotonic() > deadline:
                raise WorkerUnavailable(f"node {self.name}: {is_preparing} is still being prepared: try again")
            time.sleep(_CHECK_LOOK_SECONDS)

    def read(self, ticket: ReadTicket) -> Iterator[pa.RecordBatch]:
        return read_rows(
            self._client(),
            self.name,
            ticket.topic,
            ticket.slots,
            ticket.ranges,
            schema_of(ticket.schema),
            skip_missing=ticket.skip_missing,
            required=ticket.required,
        )

    def close_idle_holds(self, idle_seconds: float = HOLD_IDLE_SECONDS) -> None:
        """Let go of holds whose readers are gone."""
        limit_ns = time.monotonic_ns() - round(idle_seconds * SECOND_NS)
        closing = []
        with self._lock:
            for key, kept in list(self._holds.items()):
                # One that is being looked through is in use, however long its workers take.
                if kept.used_at_ns < limit_ns and kept.lock.acquire(blocking=False):
                    closing.append(self._holds.pop(key))
        for kept in closing:
            kept.hold.close()
            kept.lock.release()


def _drop_run_once(client: Client, request: DropRun) -> str:
    """Drop what can be dropped; names a stage that is between open and prepared, which takes one fsync."""
    preparing = ""
    for core, (incarnation, stages) in client.staged_of(request.topic).items():
        of_run = [stage for stage in stages if (stage.txn_id, stage.epoch) == (request.txn_id, request.epoch)]
        if of_run:
            numbers = [stage.number for stage in of_run]
            client.drop_stages(request.topic, core, incarnation, numbers, "its run was aborted")
        for stage in of_run:
            if stage.state == StageState.PREPARING.value:
                preparing = f"stage {stage.number} of worker {core}"
    return preparing


def _held_contents(core: int, held: HeldCore, *, is_new: bool) -> CoreContents:
    return CoreContents(
        core,
        held.segments,
        held.gaps,
        held.oldest,
        is_new,
        held.is_leaving,
        held.unsettled,
        held.next_segment_seq,
        held.incarnation,
    )


def _slots_of(client: Client, topic: str) -> dict[str, int]:
    topics = client.topics()
    if topic not in topics:
        raise UnknownTopic(f"topic {topic!r} does not exist on this node: its topics are {', '.join(sorted(topics))}")
    return dict(topics[topic].slots)


def _known_on(client: Client, topic: str, subscriber: str) -> set[int]:
    """Workers that know a subscriber."""
    found = client.subscribers(topic).items()
    return {core for core, infos in found if subscriber in {info.subscriber for info in infos}}


def _lost_for(client: Client, topic: str, terms: HoldTerms, known_on: set[int]) -> list[CoreContents]:
    """What workers that do not know the subscriber have, if one of them has lost what it needs."""
    segments = client.segments(topic)
    new = [CoreContents(core, infos, is_new=True) for core, infos in segments.items() if core not in known_on]
    return new if any(each.begins_behind(terms.starts.get(each.core, (0, 0))) for each in new) else []


class _KeptHold:
    """A hold with what has to be known of it. Everything but `used_at_ns` is used under `lock`."""

    def __init__(self, client: Client, topic: str, terms: HoldTerms, known_on: set[int]) -> None:
        self.lock = threading.Lock()
        self.used_at_ns = time.monotonic_ns()
        self.known_on = known_on
        """Workers that know the subscriber."""
        self._terms = client, topic, terms
        self.hold = self._attached()

    def _attached(self) -> Hold:
        client, topic, terms = self._terms
        starts = {core: BundleId(topic, core, *start) for core, start in terms.starts.items() if start != (0, 0)}
        return client.hold(terms.subscriber, topic=topic, starts=starts, ttl=terms.ttl_ns / SECOND_NS)

    def look(self, flush: bool) -> dict[int, HeldCore]:
        self.used_at_ns = time.monotonic_ns()
        try:
            return self.hold.look(flush=flush)
        except ClosedError:
            self.hold = self._attached()
            return self.hold.look(flush=flush)
        finally:
            self.used_at_ns = time.monotonic_ns()
