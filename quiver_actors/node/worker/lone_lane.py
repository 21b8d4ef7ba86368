"""The short way of a lone push through one engine of a worker: copied, checked, written, and its commit handed over, in one call.

Owner: the engine's host, on the loop thread. A push may take it while nothing else of its topic is under way. What else it calls for
follows in a turn of the host within `CARE_NS`. The push that is under way waits in `Ingest` like all others: pushes that come meanwhile are
written behind it, and a failure of the engine refuses it with them.
"""

from __future__ import annotations

from time import monotonic_ns
from typing import Any, Protocol

import numpy as np

from quiver_actors.base.metrics.latency import Histogram
from quiver_actors.base.model import Durability
from quiver_actors.base.protocol.lone import KIND_ACK, LONE_ACK, LONE_ACK_LENGTH, LONE_MARK, LoneFields
from quiver_actors.base.protocol.messages import AckRun
from quiver_actors.base.units import MILLISECOND_NS
from quiver_actors.node.worker.dispatcher import Dispatcher
from quiver_actors.node.worker.engine_jobs import EngineJobs
from quiver_actors.node.worker.ingest import Ingest
from quiver_actors.node.worker.lone_syncs import CarryOut
from quiver_actors.node.worker.run_queue import RunQueue, Scheduled
from quiver_actors.node.worker.session import Session
from quiver_actors.store.encoding.lone import LONE_BYTES_MAX
from quiver_actors.store.engine import Engine
from quiver_actors.store.engine.events import Shown
from quiver_actors.store.jobs.commits import LoneCommit
from quiver_actors.store.retention.pressure import Pressure
from quiver_actors.store.wal.lone import LoneStream

CARE_NS = 5 * MILLISECOND_NS
"""Time after a push at which the host looks at all other work, as it does between light turns."""
_EOS_BYTES = 8
_SYNCED = int(Durability.SYNCED)


class LoneHost(Scheduled, Protocol):
    """The host of the lane's engine."""

    def touch_push(self) -> None:
        """Have a turn at once."""


class LoneLane:
    """Takes lone pushes of one engine."""

    def __init__(
        self,
        engine: Engine,
        ingest: Ingest,
        jobs: EngineJobs,
        carry_out: CarryOut,
        dispatcher: Dispatcher,
        latency: Histogram,
        run_queue: RunQueue[Any],
        host: LoneHost,
        pressure: Pressure,
    ) -> None:
        """
        Args:
            latency: gets the time from each push's arrival to its acknowledgement.
            pressure: of the worker: under any, commits may have to wait for more pushes.
        """
        self._engine = engine
        self._ingest = ingest
        self._jobs = jobs
        self._carry_out = carry_out
        self._dispatcher = dispatcher
        self._latency = latency
        self._run_queue = run_queue
        self._host = host
        self._pressure = pressure
        self._session: Session | None = None
        """Session of the push that is under way; None: there is none, or it came from inside of the process."""
        self._memory: memoryview = np.empty(LONE_BYTES_MAX, dtype=np.uint8).data

    def push(self, session: Session, stream: LoneStream, fields: LoneFields, now_ns: int) -> bool:
        """Take a push of the node's own user. False: nothing has happened, and it has to go the general way."""
        _, _, _, padding, crc, tag, offset, end_position, length, _, rows, metadata_bytes, _, item_count = fields
        ingest, jobs, arena = self._ingest, self._jobs, session.arena
        if (
            length > LONE_BYTES_MAX
            or ingest.waiting.count
            or ingest.unacknowledged
            or ingest.closed_by is not None
            or self._pressure.steps
        ):
            return False
        source = arena.lone_span(offset, length, end_position)
        if source is None:
            return False
        span = self._memory[:length]
        span[:] = source
        body_bytes = length - stream.message_end - 4 - metadata_bytes - _EOS_BYTES - padding
        taken = self._engine.intake
        commit = taken.take_lone(span, stream, crc, rows, metadata_bytes, body_bytes, item_count)
        if commit is None:
            return False
        arena.release_lone(end_position)
        if taken.segment_seq > ingest.flushes.segment_staged:
            ingest.flushes.segment_staged = taken.segment_seq
        self._session = session
        run = AckRun(tag, taken.segment_seq, taken.bundle_index, taken.sequence, 1)
        ingest.unacknowledged.append((taken.sequence + 1, session, [run], now_ns))
        if commit.error is None:
            host = self._host
            if host.deadline_ns is None or host.deadline_ns > now_ns + CARE_NS:
                self._run_queue.turn_by(host, now_ns + CARE_NS)
            self._carry_out(commit, jobs.begin_lone(commit))
        else:
            self._host.touch_push()
        return True

    def finished(self, commit: LoneCommit) -> None:
        """Take back a commit that succeeded. Only the sender of the push waits for it, and then perhaps one consumer, unless other pushes
        have come meanwhile."""
        engine, host, log = self._engine, self._host, commit.steps[0][0]
        engine.group_commit.finish_lone()
        is_more = not self._acknowledge()
        self._run_queue.note_activity(host)
        if engine.progress.registry.states:
            if is_more or not self._dispatcher.pass_on(log, engine.intake.item_count):
                self._show()
            elif host.deadline_ns is None or host.deadline_ns > monotonic_ns() + CARE_NS:
                host.touch_push()  # the lease that has begun has an end
        if is_more:
            self._run_queue.note_commit(host)
            self._ingest.acknowledge()
            host.touch_push()

    def _show(self) -> None:
        """Let subscribers have what is durable now, in a turn."""
        for event in self._engine.readable_end.advance():
            if isinstance(event, Shown) and self._dispatcher.shown(event.segment_seq):
                self._host.touch_push()

    def _acknowledge(self) -> bool:
        """Answer the push, if it came from a session. False: others wait, and nothing was answered."""
        ingest, pending = self._ingest, self._ingest.unacknowledged
        lone, self._session = self._session, None
        if ingest.waiting.count or ingest.closed_by is not None or len(pending) > 1:
            return False
        if not pending:
            return True
        sequence, session, runs, arrived_ns = pending[0]
        if session is not lone or sequence > self._engine.group_commit.sequence_durable:
            return False
        pending.popleft()
        self._latency.observe(monotonic_ns() - arrived_ns)
        run = runs[0]
        place = run.bundle_index, run.tag, run.segment_seq, run.sequence
        session.send_frame(LONE_ACK.pack(LONE_ACK_LENGTH, LONE_MARK, KIND_ACK, _SYNCED, *place))
        return True
