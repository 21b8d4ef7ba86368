"""A worker's event loop: everything that happens in its one loop thread, turn by turn.

A turn: finish the jobs that the threads have done (acknowledgements leave at once), read what has arrived, let every engine that was
asked for something write, start jobs and answer, and send. All frames of a read are handled before anything is written or
sent, so the cost of a turn is shared by all messages that arrived during the one before.

Connections are read and written by `node.worker.connections`, which serves those of other users last and within their budgets.

Guarantees: nothing here blocks but `epoll`, and the sync of a lone push while the disk is quick (`lone_syncs`); a connection that
misbehaves, does not read or goes away costs its own bundles and claims only; after `request_drain` the loop ends when every engine is
sealed and every answer is sent.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from time import monotonic_ns

from quiver_actors.base.metrics.figures import WorkerState
from quiver_actors.base.units import SECOND_NS
from quiver_actors.node.worker.adoption import Adoption
from quiver_actors.node.worker.connections import Connections
from quiver_actors.node.worker.doors import Poll
from quiver_actors.node.worker.figures import PUBLISH_INTERVAL_NS, FigurePublisher, LoopFigures
from quiver_actors.node.worker.free_memory import FreeMemory
from quiver_actors.node.worker.host import EngineHost
from quiver_actors.node.worker.journal import Journal
from quiver_actors.node.worker.lifecycle import Lifecycle, Phase
from quiver_actors.node.worker.load import Load
from quiver_actors.node.worker.loop_wake import LoopWake
from quiver_actors.node.worker.run_queue import RunQueue
from quiver_actors.node.worker.storage import StorageShare
from quiver_actors.node.worker.threads import JobThread
from quiver_actors.node.worker.topics import Topics
from quiver_actors.store.engine import EngineState
from quiver_actors.supervisor.exitcodes import ChildExit

_SENT_BEFORE_COMMIT_MAX = 4
_EVENTS_PER_TURN = 256
_PUBLISH_EARLY_NS = PUBLISH_INTERVAL_NS // 20
"""A turn that comes so little too early publishes: an idle worker wakes up once for several things."""
_SWEEP_INTERVAL_NS = SECOND_NS
_THREAD_STOP_SECONDS = 5.0
_NS_PER_SECOND = 1e9
_LEAVING = Phase.LEAVING
"""CPython 3.11 takes longer to look up a member of an enum than to call a function."""


class WorkerLoop:
    """Event loop of a worker. Takes over the connections with their poll, the threads and `wake_fd`; engines and figures stay the
    caller's."""

    def __init__(
        self,
        *,
        poll: Poll,
        connections: Connections,
        topics: Topics,
        adoption: Adoption,
        run_queue: RunQueue[EngineHost],
        threads: Sequence[JobThread],
        wake_fd: int,
        figures: FigurePublisher,
        journal: Journal,
        share: StorageShare,
        load: Load,
    ) -> None:
        """
        Args:
            poll: looks at the connections, and at `wake_fd`.
            wake_fd: eventfd that the threads raise; -1: they wake the loop in another way.
        """
        self._adoption = self._hosts = adoption
        self._run_queue = run_queue
        self._full: set[EngineHost] = set()
        self._threads = threads
        self._wake = LoopWake(wake_fd)
        self._figures = figures
        self._free_memory = FreeMemory()
        self._journal = journal
        self._share = share
        self._load = load
        self._publish_at_ns = 0
        self._sweep_at_ns = 0
        self._turns = 0
        self._gap_ns_max = 0
        self._gap_ns_max_before = 0
        self.threads_stopped = False
        """Whether no job is running any more, after `run`."""
        self._epoll = poll
        self.connections = connections
        self.connections.doors.accept(is_wanted=True)
        self.life = Lifecycle(topics, adoption, self.connections, figures, journal)

    # --- from outside --------------------------------------------------------------------------------------------------

    def request_drain(self) -> None:
        """Stop in good order. May be called by a signal handler or another thread."""
        self.life.drain_is_requested = self.life.is_moving = True
        self._wake.wake()

    def request_intake_stop(self) -> None:
        """Take no more pushes, go on with everything else. May be called by a signal handler or another thread."""
        self.life.intake_stop_is_requested = self.life.is_moving = True
        self._wake.wake()

    def run(self) -> ChildExit:
        """Serve until told to drain or until an engine has failed."""
        try:
            while self.step():
                continue
            return self.life.outcome
        finally:
            self.close()

    def step(self, *, waits: bool = True) -> bool:
        """Do one turn, at once or when there is something to do; False: the loop has ended."""
        if self.life.phase is _LEAVING and self.life.has_ended:
            return False
        wait_ns = self.next_turn_ns() - monotonic_ns() if waits else 0
        ready = self._epoll.poll(wait_ns / _NS_PER_SECOND if wait_ns > 0 else 0, _EVENTS_PER_TURN)
        started_ns = monotonic_ns()
        self._turn(ready, started_ns)
        took_ns = monotonic_ns() - started_ns
        if took_ns > self._gap_ns_max:
            self._gap_ns_max = took_ns
        return True

    # --- one turn ------------------------------------------------------------------------------------------------------

    def _turn(self, ready: Sequence[tuple[int, int]], now_ns: int) -> None:
        self._turns += 1
        for thread in self._threads:
            if thread.done:
                self.finish_jobs()
        connections, life = self.connections, self.life
        connections.take(ready, now_ns)
        turned = self._run_queue.due(now_ns)
        for host in turned:
            host.turn(now_ns)
            self._run_queue.note(host)
        if len(turned) > 1:
            self._figures.beat()
        if connections.unsent:
            connections.flush()
        if connections.paused:
            connections.resume_paused()
        if turned or life.is_moving:
            life.advance(turned, now_ns)
        if connections.budgets.in_turn:
            connections.serve_guests()
        if now_ns >= self._share.early_ns:
            self._share.turn(now_ns)
        if now_ns >= self._publish_at_ns - _PUBLISH_EARLY_NS:
            self._publish(now_ns)

    def finish_jobs(self) -> None:
        """Take back the jobs that the threads have done: acknowledgements leave at once, and the next commits start."""
        for thread in self._threads:
            if thread.done:
                thread.finish_jobs()
                self._acknowledge_and_commit()

    def _acknowledge_and_commit(self) -> None:
        """Send the answers that finished jobs allow, and start the next commits. A few answers leave first: the thread that a commit wakes
        takes this core. With many answers the disk would wait for them, so the commits start first."""
        connections = self.connections
        if len(connections.unsent) <= _SENT_BEFORE_COMMIT_MAX:
            connections.flush()
        for host in self._run_queue.take_committed():
            host.jobs.start_commit()
        if connections.unsent:
            connections.flush()

    def turn_by(self, host: EngineHost, at_ns: int) -> None:
        """Give a host a turn at that time (monotonic ns) at the latest, in which it looks at everything."""
        self._run_queue.turn_by(host, at_ns)

    def next_turn_ns(self) -> int:
        """Monotonic time at which there is something to do although nothing arrives."""
        connections, latest_ns = self.connections, min(self._publish_at_ns, self._share.deadline_ns)
        if connections.unfinished or connections.budgets.in_turn:
            latest_ns = min(latest_ns, connections.due_ns)
        return self._run_queue.next_ns(latest_ns)

    # --- now and then --------------------------------------------------------------------------------------------------

    def _publish(self, now_ns: int) -> None:
        self._publish_at_ns = now_ns + PUBLISH_INTERVAL_NS
        recent = self._run_queue.take_recent()
        if self.life.phase is Phase.SERVING:
            self._adoption.look(now_ns)
            self._show_health(recent)
        # Hosts to which nothing has happened have nothing new for anybody.
        for host in recent:
            host.look_again()
        arenas = [session.arena for session in self.connections.sessions.values()]
        figures = LoopFigures(
            sessions=len(self.connections.sessions),
            arena_bytes=sum(arena.size_bytes for arena in arenas),
            arena_used_bytes=sum(arena.used_bytes for arena in arenas),
            loop_gap_ns_max=max(self._gap_ns_max, self._gap_ns_max_before),
            turns=self._turns,
            intake_stopped=self.life.intake_is_stopped,
            topics_version=self._adoption.applied_version,
            unopened=self._adoption.unopened,
        )
        self._load.sample(
            self._hosts.values(),
            recent,
            arena_bytes=figures.arena_bytes,
            arena_used_bytes=figures.arena_used_bytes,
            cap_fraction=self._share.cap_fraction,
        )
        self._share.show_pressure(self._load.pressure)
        self._figures.publish(figures, self._hosts, recent)
        if now_ns >= self._sweep_at_ns:
            self._sweep(now_ns)

    def _show_health(self, recent: set[EngineHost]) -> None:
        self._full = {host for host in self._full | recent if host.engine.state is EngineState.FULL}
        full = sorted(host.engine.topic for host in self._full)
        state = WorkerState.DEGRADED if full or self._adoption.unopened else WorkerState.READY
        if self._figures.state is not state:
            self._figures.set_state(state)
            name = f"worker.{state.name.lower()}"
            self._journal.event(name, level=logging.WARNING, full_topics=",".join(full) or None)

    def _sweep(self, now_ns: int) -> None:
        """Look at what needs a look now and then."""
        self._sweep_at_ns = now_ns + _SWEEP_INTERVAL_NS
        self._gap_ns_max_before, self._gap_ns_max = self._gap_ns_max, 0
        if self._adoption.cores and self.life.phase is Phase.SERVING:
            self._adoption.sweep(self.connections.end_adopted)
        for host in self._run_queue.take_unswept(now_ns):
            self._run_queue.note_sweep(host, host.sweep(now_ns))
        self.connections.sweep(now_ns)
        self._adoption.forget_deletions(self.connections.oldest_topics_version())
        self._free_memory.sweep(now_ns)

    def close(self) -> None:
        """Let everything go at once. `run` does it at its end."""
        self.connections.close()
        stopped = [thread.stop(_THREAD_STOP_SECONDS) for thread in self._threads]
        self.threads_stopped = all(stopped)
        self._epoll.close()
        if self.threads_stopped:
            self._wake.close()
