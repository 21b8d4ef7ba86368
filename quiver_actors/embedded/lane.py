"""The short way of a lone push: from its bundles to the engine, without a connection and its messages.

A push may take it while nothing else of its topic is under way: nobody waits for room, nothing was taken and not acknowledged, no commit
runs. Its bundle, or its only group of bundles, is encoded outside of the lock, staged and written under it, and synced by the calling
thread. Everything else goes through the connection like the pushes of a node, and so does a push again whose engine failed under it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial

import numpy as np
import pyarrow as pa

from quiver_actors.base.model import BundleId, Durability, Receipt
from quiver_actors.base.protocol.messages import AckRun, Push
from quiver_actors.base.units import MILLISECOND_NS
from quiver_actors.client.grouping import GROUP_BUNDLES_MAX, GROUP_BYTES_MAX, Planned
from quiver_actors.client.receipts import Receipts
from quiver_actors.client.slots import Bundle, TopicSlots
from quiver_actors.embedded.drive import Drive
from quiver_actors.embedded.worker import EmbeddedWorker
from quiver_actors.errors import PushTimeout, QuiverError, UsageError
from quiver_actors.node.worker.host import EngineHost
from quiver_actors.store.encoding.entries import PlannedBundles, plan
from quiver_actors.store.encoding.lone import LoneEntry, lone_entry
from quiver_actors.store.encoding.streams import StreamTable
from quiver_actors.store.engine import EngineState
from quiver_actors.store.jobs.commits import LoneCommit
from quiver_actors.store.segment.placement import StreamSchema
from quiver_actors.store.wal.lone import LoneStream

_FAILED = EngineState.FAILED
_CARE_NS = 5 * MILLISECOND_NS
"""How soon after a push the worker looks at everything else of its topic, as it does between light turns."""
_LOOK_SECONDS = 0.0005
"""Pause between looks at a commit that another thread carries out, after an interrupt."""
_SYNCED = Durability.SYNCED

# Without the constructors' Python code.
_new_id: Callable[[tuple[object, ...]], BundleId] = partial(tuple.__new__, BundleId)
_new_receipt: Callable[[tuple[object, ...]], Receipt] = partial(tuple.__new__, Receipt)


def _is_idle(host: EngineHost) -> bool:
    """Whether pushes are taken and none waits, is taken and not acknowledged, or is being synced."""
    return host.ingest.may_be_lone and host.engine.group_commit.is_idle


def _fit_one_group(bundles: Sequence[Bundle]) -> bool:
    """Whether bundles, if all are as large as the first, travel in one message. Slices count with all of their buffers."""
    if not 0 < len(bundles) <= GROUP_BUNDLES_MAX:
        return False
    first = bundles[0]
    batches = first.values() if isinstance(first, Mapping) else (first,)
    tables = [batch for batch in batches if isinstance(batch, pa.RecordBatch | pa.Table)]
    size_bytes: int = sum(table.get_total_buffer_size() for table in tables)
    return len(bundles) * size_bytes < GROUP_BYTES_MAX


class Lane:
    """The short way into one topic, for as long as its worker and its slots are the same. May be used by any thread."""

    def __init__(
        self,
        drive: Drive,
        worker: EmbeddedWorker,
        host: EngineHost,
        slots: TopicSlots,
        streams: StreamTable,
        grouped: Callable[[Sequence[Bundle]], Iterator[Planned]],
    ) -> None:
        """
        Args:
            grouped: encodes bundles for the topic, in groups (`client.grouping`).
        """
        self._drive = drive
        self._worker = worker
        self._host = host
        self._slots = slots
        self._topic = slots.topic
        self._core = host.engine.core
        self._streams = streams
        self._grouped = grouped
        self._schemas: dict[int, StreamSchema] = {}
        self._known: dict[int, LoneStream] = {}
        """Known streams by their handles."""

    @property
    def is_open(self) -> bool:
        """Whether the lane still leads to the topic."""
        return self._drive.worker is self._worker and not (self._host.is_given_up or self._host.is_failed)

    def push(self, bundle: Bundle, item_count: int | None, timeout_seconds: float) -> Receipt | None:
        """Store one bundle; None: it has to go the other way, and was perhaps stored.

        Raises:
            InvalidBundle, UnknownSlot: the call is wrong.
            PushTimeout: not acknowledged in time; it may still become durable.
        """
        if not self._host.ingest.may_be_lone:
            return None
        lone = lone_entry(bundle, self._slots.only_slot, self._streams, item_count)
        if lone is None:
            return self._push_planned(bundle, item_count, timeout_seconds)
        drive, worker = self._drive, self._worker
        try:
            with drive.lock:
                if drive.worker is not worker or worker.wire.has_input:
                    return None
                try:
                    commit = self._take(lone)
                except BaseException as error:
                    drive.give_up(f"a push was broken off by {error!r}", at_once=True)
                    raise
                if commit is None:
                    return None
                if commit.error is not None:
                    drive.turn()
                    return None
                taken = self._host.engine.intake
                receipt = _new_receipt(
                    (
                        _new_id((self._topic, self._core, taken.segment_seq, taken.bundle_index)),
                        taken.sequence,
                        _SYNCED,
                        False,
                    )
                )
            worker.commits.work()
            with drive.lock:
                is_stored = self._is_stored(receipt.sequence)
            return receipt if is_stored or self._waited(receipt.sequence, timeout_seconds) is not None else None
        except BaseException as error:
            drive.give_work_back(error)
            drive.wake()
            raise

    def _take(self, lone: LoneEntry) -> LoneCommit | None:
        """Stage and write the bundle, and take its commit for this thread; None: it has to go the other way. The lock is held.

        What else a push calls for follows in a turn of the worker, a little later.
        """
        host = self._host
        if not host.ingest.may_be_lone:
            return None
        entry, stream, crc, row_count, metadata_bytes, body_bytes, _, items = lone
        known = self._known.get(stream.handle)
        if known is None:
            known = LoneStream(StreamSchema(stream.slot_id, stream.fingerprint, stream.message))
            self._known[stream.handle] = known
        pushes = host.engine.intake
        commit = pushes.take_lone(memoryview(entry), known, crc, row_count, metadata_bytes, body_bytes, items)
        if commit is None:
            return None
        flushes = host.ingest.flushes
        flushes.segment_staged = max(flushes.segment_staged, pushes.segment_seq)
        if commit.error is None:
            self._worker.commits.take_lone(commit, host.jobs.begin_lone(commit))
        due_ns = time.monotonic_ns() + _CARE_NS
        if host.deadline_ns is None or host.deadline_ns > due_ns:
            self._worker.loop.turn_by(host, due_ns)
            self._drive.alarm.ring_before(due_ns)
        return commit

    def _is_stored(self, sequence: int) -> bool:
        """Take the commit of the bundle back; False: more is to be done before it is known to be stored. The lock is held."""
        drive, worker, host = self._drive, self._worker, self._host
        if drive.worker is not worker:
            return False
        try:
            is_back = worker.commits.finish_lone()
            needs_turn = host.is_touched or worker.wire.has_input or not host.ingest.may_be_lone
        except BaseException as error:
            drive.give_up(f"a job that came back was broken off by {error!r}", at_once=True)
            raise
        if needs_turn or not is_back:
            return False
        if worker.wire.heard:
            drive.rouse(worker)
        return sequence < host.engine.group_commit.sequence_durable

    def _push_planned(self, bundle: Bundle, item_count: int | None, timeout_seconds: float) -> Receipt | None:
        """`push` of any bundle, with more calls."""
        if not _is_idle(self._host):
            return None
        planned = PlannedBundles([plan(self._slots.batches_of(bundle), self._streams, item_count)])
        receipts = self._push_group(planned, timeout_seconds)
        return None if receipts is None else receipts[0]

    def push_many(self, bundles: Sequence[Bundle], timeout_seconds: float) -> Receipts | None:
        """Store bundles that make one group; None: they have to go the other way, and were perhaps stored.

        Raises:
            InvalidBundle, UnknownSlot: the call is wrong.
            PushTimeout: not acknowledged in time; they may still become durable.
        """
        if not _is_idle(self._host) or not _fit_one_group(bundles):
            return None
        try:
            groups = [*self._grouped(bundles)]
        except UsageError:
            # Those in front of the wrong bundle are stored before the error is raised.
            return None
        return self._push_group(groups[0], timeout_seconds) if len(groups) == 1 else None

    def _push_group(self, planned: Planned, timeout_seconds: float) -> Receipts | None:
        """Store bundles that were encoded; None: as of `push`."""
        drive = self._drive
        memory = np.empty(planned.size_bytes, dtype=np.uint8).data
        rows = planned.write(memory, 0)
        push = rows.push(0, self._slots.topic, 0, len(memory), len(memory))
        schemas = self._schemas
        for stream in rows.streams:
            if stream.handle not in schemas:
                schemas[stream.handle] = StreamSchema(stream.slot_id, stream.fingerprint, stream.message)
        try:
            with drive.lock:
                if not self.is_open or self._worker.wire.has_input:
                    return None
                try:
                    run = self._stage(memory, push)
                except QuiverError:
                    raise
                except BaseException as error:
                    drive.give_up(f"a push was broken off by {error!r}", at_once=True)
                    raise
                if run is None:
                    return None
                taken = drive.take_work()
            if taken is not None:
                taken.work()
            durability = self._waited(run.sequence + run.count - 1, timeout_seconds)
            if durability is None:
                return None
            receipts = Receipts(self._slots.topic)
            receipts.add(0, run, durability)
            return receipts
        except BaseException as error:
            drive.give_work_back(error)
            drive.wake()
            raise

    def _stage(self, memory: memoryview, push: Push) -> AckRun | None:
        """Stage and write the bundle, and begin its commit; None: something is under way, or there is no room now. The lock is held.

        What else a push calls for follows in a turn of the worker, a little later.
        """
        host = self._host
        if not _is_idle(host) or not host.engine.intake.can_stage(push.length):
            return None
        (run,) = host.engine.intake.stage(memory, push, self._schemas)
        flushes = host.ingest.flushes
        flushes.segment_staged = max(flushes.segment_staged, run.segment_seq)
        host.ingest.write()
        host.jobs.start_commit()
        self._worker.loop.turn_by(host, time.monotonic_ns() + _CARE_NS)
        return run

    def _waited(self, sequence: int, timeout_seconds: float) -> Durability | None:
        """Wait until the bundle is stored, and return how; None: the engine failed."""
        drive, host, deadline = self._drive, self._host, 0.0
        while True:
            with drive.lock:
                if drive.worker is not self._worker:
                    return None
                drive.settle(self._worker)
                reached, durability = host.engine.group_commit.acknowledges
                if sequence < reached:
                    return durability
                if host.is_given_up or host.engine.state is _FAILED:
                    drive.turn()
                    return None
            deadline = deadline or time.monotonic() + timeout_seconds
            if time.monotonic() >= deadline:
                raise PushTimeout(
                    f"a bundle for topic {self._slots.topic!r} was not acknowledged within {timeout_seconds} s: it may still become durable"
                )
            time.sleep(_LOOK_SECONDS)
