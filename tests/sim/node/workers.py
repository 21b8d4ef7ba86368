"""Workers in one process: the worker's own code, with threads whose jobs run when the scheduler says so."""

from __future__ import annotations

import os
import resource
import select
import socket
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import cast

from quiver_actors.base.clock import SystemClock
from quiver_actors.base.metrics.figures import WorkerState
from quiver_actors.node.worker import peer
from quiver_actors.node.worker.budgets import NEVER_NS
from quiver_actors.node.worker.context import WorkerContext
from quiver_actors.node.worker.dispatcher import Dispatcher
from quiver_actors.node.worker.doors import Poll
from quiver_actors.node.worker.entry import Worker
from quiver_actors.node.worker.figures import FigurePublisher
from quiver_actors.node.worker.journal import Journal
from quiver_actors.node.worker.lone_syncs import CarryOut, LoneSyncs, input_of
from quiver_actors.node.worker.peer import Peer
from quiver_actors.node.worker.requests import ArenaJob
from quiver_actors.node.worker.threads import Finished, Job, JobThread
from tests.disks.monitor import OrderMonitor
from tests.sim.node.message_kills import MessageKills
from tests.sim.node.opening import Opening
from tests.sim.node.polls import DelayingPoll, Delays
from tests.sim.node.room import GUEST_UID
from tests.sim.node.shared_disk import CoreDisk

_QUICK_COMMITS = 1
"""After so many commits in a row of lone pushes the loop of a worker syncs itself."""


def peer_of(connection: socket.socket) -> Peer:
    """Return the peer: the own user, or the guest where its socket has a name."""
    found = peer.peer_of(connection)
    return found._replace(uid=GUEST_UID, gid=GUEST_UID) if connection.getpeername() else found


class SimThread(JobThread):
    """A job thread without a thread: `run_next` does what the thread would do next."""

    def __init__(self, name: str) -> None:
        # Not the base class's: it would start a thread.
        self.name = name
        self._waiting: deque[tuple[Job, Finished]] = deque()
        self.done: deque[Finished] = deque()
        self._unfinished: deque[Job] = deque()
        """Jobs of the completions in `done`, in the same order."""
        self.submissions = 0
        self.refusals = 0
        """Number of the next arenas that get no memory."""

    @property
    def has_work(self) -> bool:
        return bool(self._waiting)

    def submit(self, job: Job, finished: Finished) -> None:
        self.submissions += 1
        self._waiting.append((job, finished))

    def run_next(self) -> str:
        """Run one job to its end; what it lets escape comes out here. Its name is returned."""
        job, finished = self._waiting.popleft()
        is_refused = self.refusals > 0 and isinstance(job, ArenaJob)
        if is_refused:
            self.refusals -= 1
            with _no_memory():
                job.run()
        else:
            job.run()
        self.done.append(finished)
        self._unfinished.append(job)
        return f"{type(job).__name__}{', refused memory' if is_refused else ''}"

    def finish_jobs(self) -> None:
        self._unfinished.clear()
        super().finish_jobs()

    def stop(self, timeout_seconds: float) -> bool:
        for job in self._unfinished:
            # The memory that it made goes with the process that it was made for.
            if isinstance(job, ArenaJob):
                job.discard()
        self._unfinished.clear()
        self.done.clear()
        self._waiting.clear()
        return True


@contextmanager
def _no_memory() -> Iterator[None]:
    """The kernel refuses to allocate a file in memory, as a full memory group would."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


class SimWorker(Worker):
    """One life of one worker. `kill` ends it as SIGKILL would."""

    def __init__(
        self, context: WorkerContext, disk: CoreDisk, delays: Delays, figures_of: Callable[[Journal], FigurePublisher]
    ) -> None:
        self.faulty = disk
        self.message_kills = MessageKills(self._stop_disk)
        self._delays = delays
        self.threads: list[SimThread] = []
        self._is_gone = False
        self._lost_wake_ups = 0
        self.opening = Opening(self.open)
        journal = Journal(context.core)
        monitor = OrderMonitor(self.faulty)
        super().__init__(context, monitor, SystemClock(), figures_of(journal), journal)

    def _start_threads(self, wake_fd: int) -> tuple[JobThread, JobThread, JobThread, JobThread]:
        sync, seal, ask, cold = SimThread("sync"), SimThread("seal"), SimThread("ask"), SimThread("cold")
        self.threads = [sync, seal, ask, cold]
        self._wake_fd = wake_fd
        return sync, seal, ask, cold

    def _lone_commits(self, sync: JobThread, poll: Poll) -> CarryOut:
        # However long a sync really takes here: a seed does the same each time.
        has_input = input_of(cast(select.epoll, poll))
        return LoneSyncs(sync, has_input, quick_commits=_QUICK_COMMITS, quick_ns=NEVER_NS).carry_out

    def _rest(self, seconds: float) -> None:
        self.opening.wait()

    def refuse_memory(self, arenas: int) -> None:
        """Refuse memory to that many of the next arenas."""
        for thread in self.threads:
            thread.refusals = arenas

    def lose_wake_ups(self, count: int) -> None:
        """Lose that many of the next wake-ups of deliveries; 0: lose no more of them."""
        self._lost_wake_ups = count
        for host in self.loop._hosts.values():
            host.dispatcher.wake = partial(self._wake, host.dispatcher)  # type: ignore[method-assign]

    def _wake(self, dispatcher: Dispatcher, subscriber: str | None = None) -> None:
        if self._lost_wake_ups:
            self._lost_wake_ups -= 1
        else:
            Dispatcher.wake(dispatcher, subscriber)

    def become_ready(self) -> None:
        """Let the worker listen; from now on messages may be late."""
        # The threads' wake-up is edge-triggered: what is kept back would never come again.
        self.loop._epoll = DelayingPoll(self.loop._epoll, self._delays, (self._wake_fd,))  # type: ignore[arg-type]
        self.loop.connections.peer_of = peer_of
        self._set_state(WorkerState.READY)

    def held(self) -> list[str]:
        """Return what is kept for connections: sessions, open stages, and segments with claims."""
        found = [f"session of {session.peer}" for session in self.loop.connections.sessions.values()]
        for topic, host in self.loop._hosts.items():
            held = host.engine._parts.progress.registry.held_segments()
            found += [
                f"open stage {stage.number} of {topic}" for stage in host.engine.stages if stage.owner is not None
            ]
            found += [f"claims of {topic}, segment {segment_seq}" for segment_seq in held]
        return found

    def kill(self) -> None:
        """Everything that the kernel closes for a dead process is closed, nothing else is done. Idempotent."""
        if self._is_gone:
            return
        self._is_gone = True
        if self.opening.is_waiting:
            self._stop_disk()
            self.opening.kill()
        loop = getattr(self, "loop", None)
        if loop is not None:
            loop.close()
        elif self.threads:
            os.close(self._wake_fd)

    def _stop_disk(self) -> None:
        """Nothing of what it does on its way out reaches the disk."""
        self.faulty.crash_at(self.faulty.mutating_count + 1)
