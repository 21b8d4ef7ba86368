"""A worker's figures on the counters page: heartbeat, itself, its engines, their subscribers, its last error.

Owner: the loop thread, every `PUBLISH_INTERVAL_NS`. Only words that changed are written.
"""

from __future__ import annotations

import enum
import itertools
import os
import time
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, TypeVar

from quiver_actors.base.clock import Clock
from quiver_actors.base.metrics.figures import (
    EngineFigure,
    ErrorFigure,
    RowKind,
    SubscriberFigure,
    WorkerFigure,
    WorkerState,
)
from quiver_actors.base.units import MILLISECOND_NS
from quiver_actors.node.worker.attachments import Attachments
from quiver_actors.node.worker.host import EngineHost
from quiver_actors.node.worker.journal import Journal
from quiver_actors.shm.counters import RegionWriter, RowWriter
from quiver_actors.shm.errors import ShmError
from quiver_actors.store.engine import Engine, EngineState
from quiver_actors.store.engine.engine_figures import SubscriberFigures
from quiver_actors.store.retention.losses import EVICTION_REASONS, LOSS_REASONS

PUBLISH_INTERVAL_NS = 100 * MILLISECOND_NS
_ROUNDS = 10
"""Publications in which every subscriber has its turn once, also one that nobody is attached to."""
_SUBSCRIBERS_MIN = 8
"""Number of subscribers up to which all of them are published each time."""


_Key = TypeVar("_Key")


@dataclass(frozen=True, slots=True)
class LoopFigures:
    """What only the loop knows."""

    sessions: int
    arena_bytes: int
    arena_used_bytes: int
    loop_gap_ns_max: int
    turns: int
    intake_stopped: bool = False
    topics_version: int = 0
    unopened: Collection[str] = ()
    """Topics whose directories could not be opened, by the keys of hosts."""


class _Row:
    """One row and what was last written to it."""

    def __init__(self, row: RowWriter) -> None:
        self.writer = row
        self._written: dict[int, int] = {}

    def publish(self, values: Iterable[tuple[int, int]]) -> None:
        for index, value in values:
            if self._written.get(index) != value:
                self.writer.set(index, value)
                self._written[index] = value


def _reader(figures: type[enum.IntEnum], *, without: frozenset[enum.IntEnum] = frozenset()) -> Any:
    """A function that reads the fields named like `figures` from a struct, as pairs of index and value."""
    wanted = [figure for figure in figures if figure not in without]
    fields = attrgetter(*(figure.name.lower() for figure in wanted))
    indexes = [int(figure) for figure in wanted]
    return lambda struct: zip(indexes, map(int, fields(struct)), strict=True)


_OF_CONNECTIONS: frozenset[enum.IntEnum] = frozenset(
    [SubscriberFigure.CONNECTIONS, SubscriberFigure.WINDOW_FULL, SubscriberFigure.DETACHED_SINCE_UNIX_NS]
)
"""What deliveries know, not the engine."""

_engine_values = _reader(EngineFigure)
_subscriber_values = _reader(SubscriberFigure, without=_OF_CONNECTIONS)


class FigurePublisher:
    """Writes the figures of a worker to its region of the counters page."""

    def __init__(self, region: RegionWriter, core: int, clock: Clock, journal: Journal) -> None:
        self._region = region
        self._clock = clock
        self._journal = journal
        self.state = WorkerState.STARTING
        """State shown on the counters page; only `set_state` changes it."""
        self._worker = _Row(region.row(RowKind.WORKER, f"core_{core}"))
        self._engines: dict[str, _Row] = {}
        self._latencies: dict[tuple[str, str], _Row] = {}
        self._retention: dict[str, _Row] = {}
        self._subscribers: dict[str, dict[str, _Row]] = {}
        """Rows of subscribers, by topic."""
        self._behind: dict[str, dict[str, None]] = {}
        """Subscribers of each topic whose rows are behind, those that have waited longest first."""
        self._names: dict[EngineHost, str] = {}
        """The keys of the hosts, looked up anew when one is missing."""
        self._unopened: set[str] = set()
        self._waiting: set[EngineHost] = set()
        """Hosts where pushes wait; idle topics, of which there may be hundreds, are not asked."""
        self._error: _Row | None = None
        self._error_count = 0
        self._beat_due_ns = 0
        self._segments_pruned = 0
        self._table_is_full = False

    def set_state(self, state: WorkerState) -> None:
        """Shown at once, with the last error, not at the next publication: the supervisor waits for it."""
        self._publish_error()
        self.state = state
        self._region.set_state(int(state))
        self._worker.publish([(WorkerFigure.STATE, int(state))])
        self.heartbeat()

    def heartbeat(self) -> None:
        """Write the worker's heartbeat, CLOCK_MONOTONIC, to its region of the counters page."""
        now_ns = self._clock.monotonic_ns()
        self._beat_due_ns = now_ns + PUBLISH_INTERVAL_NS
        self._region.heartbeat(now_ns)

    def beat(self) -> None:
        """Between the portions of a turn: a turn that is long is not a loop that hangs."""
        if self._clock.monotonic_ns() >= self._beat_due_ns:
            self.heartbeat()

    def count_pruned(self, segment_count: int) -> None:
        """Add segments that a reader did not open."""
        self._segments_pruned += segment_count

    def publish(self, loop: LoopFigures, hosts: Mapping[str, EngineHost], recent: Collection[EngineHost] = ()) -> None:
        """`recent`: those whose figures may have changed since the last time."""
        self.heartbeat()
        self._waiting = {host for host in (*self._waiting, *recent) if host.ingest.waiting.count}
        for topic, host in self._named(recent, hosts):
            self._publish_engine(topic, host)
            self._publish_latencies(topic, host)
            self._publish_retention(topic, host)
            self._behind.setdefault(topic, {}).update(dict.fromkeys(host.engine.registrations.names()))
        for topic in [topic for topic in self._behind if topic in hosts]:
            self._publish_subscribers(topic, hosts[topic], in_turn=not loop.intake_stopped)
        self._publish_unopened(loop.unopened, hosts)
        self._publish_error()
        self._drop_gone(hosts)
        self._publish_worker(loop)

    def _named(self, recent: Iterable[EngineHost], hosts: Mapping[str, EngineHost]) -> Iterator[tuple[str, EngineHost]]:
        """Yield the hosts that are still there, with their keys."""
        for host in recent:
            if host not in self._names:
                self._names = {each: name for name, each in hosts.items()}
            name = self._names.get(host)
            if name is not None and hosts.get(name) is host:
                yield name, host

    def _publish_worker(self, loop: LoopFigures) -> None:
        self._worker.publish(
            [
                (WorkerFigure.STATE, int(self.state)),
                (WorkerFigure.CPU_NS, time.process_time_ns()),
                (WorkerFigure.SESSIONS, loop.sessions),
                (WorkerFigure.ARENA_BYTES, loop.arena_bytes),
                (WorkerFigure.ARENA_USED_BYTES, loop.arena_used_bytes),
                (WorkerFigure.LOOP_GAP_NS_MAX, loop.loop_gap_ns_max),
                (WorkerFigure.PUSHES_WAITING, sum(host.ingest.waiting.count for host in self._waiting)),
                (WorkerFigure.TURNS, loop.turns),
                # With figures that have no row, what is shown does not tell that nothing is left to do.
                (WorkerFigure.INTAKE_STOPPED, int(loop.intake_stopped and not self._table_is_full)),
                (WorkerFigure.TOPICS_VERSION, loop.topics_version),
                (WorkerFigure.SEGMENTS_PRUNED, self._segments_pruned),
            ]
        )

    def _publish_engine(self, topic: str, host: EngineHost) -> None:
        if (row := self._row(self._engines, topic, RowKind.ENGINE, topic)) is not None:
            row.publish(_engine_values(host.engine.figures()))

    def _publish_unopened(self, unopened: Collection[str], hosts: Mapping[str, EngineHost]) -> None:
        """Publish a row for each unopened topic that only says that the topic is degraded. Its engine's row replaces it later."""
        for topic in self._unopened.difference(unopened):
            if topic not in hosts and (row := self._engines.pop(topic, None)) is not None:
                self._region.drop(row.writer)
        self._unopened = set(unopened)
        for topic in unopened:
            if (row := self._row(self._engines, topic, RowKind.ENGINE, topic)) is not None:
                row.publish([(EngineFigure.STATE, int(EngineState.DEGRADED))])

    def _publish_latencies(self, topic: str, host: EngineHost) -> None:
        for latency, histogram in host.latencies.items():
            key = (topic, latency)
            if key not in self._latencies and not any(histogram.words):
                continue
            if (row := self._row(self._latencies, key, RowKind.LATENCY, f"{topic}/{latency}")) is not None:
                row.publish(enumerate(histogram.words))

    def _publish_retention(self, topic: str, host: EngineHost) -> None:
        if (row := self._row(self._retention, topic, RowKind.RETENTION, topic)) is not None:
            row.publish(enumerate(retention_words(host.engine)))

    def _row(self, rows: dict[_Key, _Row], key: _Key, kind: RowKind, label: str) -> _Row | None:
        """Return the row of a key, made if it is new; None if the table has no room for it: other rows are still written."""
        row = rows.get(key)
        if row is None:
            try:
                row = rows[key] = _Row(self._region.row(kind, label))
            except ShmError as error:
                self._report_full_table(error)
        return row

    def _publish_subscribers(self, topic: str, host: EngineHost, *, in_turn: bool) -> None:
        """Publish attached and new subscribers, and some of the others in turn: each of these is at most a second behind.

        Args:
            in_turn: False: publish all subscribers, as a drain waits for the moment at which nothing is left to do.
        """
        rows, behind = self._subscribers.setdefault(topic, {}), self._behind[topic]
        present = dict.fromkeys(host.engine.registrations.names())
        for gone in [*(rows.keys() - present.keys())]:
            self._region.drop(rows.pop(gone).writer)
        for gone in [*(behind.keys() - present.keys())]:
            del behind[gone]
        attached = [name for name in host.deliveries.attachments.subscribers if name in behind]
        new = [name for name in behind if name not in rows]
        others = itertools.islice(behind, max(_SUBSCRIBERS_MIN, -(-len(present) // _ROUNDS)) if in_turn else None)
        for name, figures in host.engine.owed.subscriber_figures(dict.fromkeys([*attached, *new, *others])).items():
            self._publish_subscriber(topic, name, figures, host.deliveries.attachments)
            del behind[name]
        if not behind:
            del self._behind[topic]

    def _publish_subscriber(
        self, topic: str, subscriber: str, figures: SubscriberFigures, attachments: Attachments
    ) -> None:
        row = self._row(self._subscribers[topic], subscriber, RowKind.SUBSCRIBER, f"{topic}/{subscriber}")
        if row is None:
            return
        row.publish(_subscriber_values(figures))
        row.publish(
            [
                (SubscriberFigure.CONNECTIONS, len(attachments.of(subscriber))),
                (SubscriberFigure.WINDOW_FULL, attachments.windows_full(subscriber)),
                (SubscriberFigure.DETACHED_SINCE_UNIX_NS, attachments.detached_since_unix_ns(subscriber)),
            ]
        )

    def _drop_gone(self, hosts: Mapping[str, EngineHost]) -> None:
        """Rows of topics that are no more."""
        # Their subscribers, as without room in the table there may be no other row of theirs.
        gone = [topic for topic in self._subscribers if topic not in hosts]
        if not gone:
            return
        self._names = {}
        for topic in gone:
            if (engine := self._engines.pop(topic, None)) is not None:
                self._region.drop(engine.writer)
            if (retention := self._retention.pop(topic, None)) is not None:
                self._region.drop(retention.writer)
            for key in [key for key in self._latencies if key[0] == topic]:
                self._region.drop(self._latencies.pop(key).writer)
            for row in self._subscribers.pop(topic, {}).values():
                self._region.drop(row.writer)
            self._behind.pop(topic, None)

    def _publish_error(self) -> None:
        journal = self._journal
        if journal.error_count == self._error_count:
            return
        if self._error is None:
            try:
                self._error = _Row(self._region.row(RowKind.ERROR, journal.last_error))
            except ShmError:
                # No row is left: the log has it, and a worker must not end for want of a figure.
                return
        else:
            self._region.relabel(self._error.writer, journal.last_error)
        self._error.publish([(ErrorFigure.UNIX_NS, self._clock.unix_ns()), (ErrorFigure.COUNT, journal.error_count)])
        self._error_count = journal.error_count

    def _report_full_table(self, error: ShmError) -> None:
        """Log once that there are more topics and subscribers than rows, so that some figures are missing."""
        if not self._table_is_full:
            self._table_is_full = True
            self._journal.error("figures.full", f"some figures are not shown: {error}")


def retention_words(engine: Engine) -> list[int]:
    """Return the words of the retention row, in the order of `RetentionFigure`."""
    use, losses = engine.disk_account.disk_use(), engine.storage.losses
    small = use.small
    words = [use.log_bytes, use.sealing_bytes, use.segment_bytes, small.compaction_bytes, small.progress_bytes]
    words += [small.gaps_bytes, small.quarantine_bytes, small.ballast_bytes, small.other_bytes]
    words += [
        engine.stages.table.disk_bytes,
        losses.throttled,
        *(losses.evictions[reason] for reason in EVICTION_REASONS),
    ]
    for reason in LOSS_REASONS:
        loss = losses.by_reason[reason]
        words += [loss.segments, loss.bundles, loss.rows, loss.size_bytes]
    kept = engine.retention.kept()
    return [*words, kept.keep_for_bytes, kept.headroom_bytes, use.held_bytes]


def tell_supervisor(wakeup_fd: int) -> None:
    """Wake the supervisor's loop after a change of state; it looks by itself too, a little later."""
    try:
        os.write(wakeup_fd, b"\0")
    except (BlockingIOError, BrokenPipeError):
        return
