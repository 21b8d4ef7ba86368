"""The worker of a store: the worker of a node without its process, its sockets and its poll.

Whoever holds the store's lock has it take turns. Commits that only sync are carried out by the thread that waits for them, where there is
one; everything else that blocks goes to threads, which have the worker take a turn when they are done.
"""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from time import monotonic_ns
from types import FrameType
from typing import Any

from quiver_actors.base.clock import SystemClock
from quiver_actors.base.metrics.figures import WorkerState
from quiver_actors.embedded.wire import ClientEnd, InnerDoor, Wire, WorkerEnd
from quiver_actors.errors import DiskError, QuiverError, StorageFull, UnknownCore
from quiver_actors.node.opened_directories import OpenedDirectories
from quiver_actors.node.worker.access import Access
from quiver_actors.node.worker.adoption import Adoption
from quiver_actors.node.worker.connections import Connections
from quiver_actors.node.worker.context import WorkerContext
from quiver_actors.node.worker.doors import Poll
from quiver_actors.node.worker.entry import Worker
from quiver_actors.node.worker.figures import FigurePublisher
from quiver_actors.node.worker.host import EngineHost
from quiver_actors.node.worker.journal import Journal
from quiver_actors.node.worker.lone_syncs import CarryOut
from quiver_actors.node.worker.peer import Peer
from quiver_actors.node.worker.requests import Requests
from quiver_actors.node.worker.threads import Finished, Job, JobThread, UnawaitedThread
from quiver_actors.store.disk.protocol import Disk
from quiver_actors.store.jobs.commits import CommitJob

Work = tuple[Job, Finished]
_THREAD_STOP_SECONDS = 5.0
_LOOK_SECONDS = 0.001


class DrivingThread(JobThread):
    """A thread that has the worker take a turn after each job."""

    def __init__(self, name: str, drive: Callable[[], None]) -> None:
        self._drive = drive
        super().__init__(name, -1)

    def _wake_loop(self) -> None:
        self._drive()


class AskingThread(UnawaitedThread):
    """The same for work that may hang, such as a question to another machine: never waited for."""

    def __init__(self, name: str, drive: Callable[[], None]) -> None:
        self._drive = drive
        super().__init__(name, -1)

    def _wake_loop(self) -> None:
        self._drive()


class CommitThread(DrivingThread):
    """The thread that syncs, unless a caller that waits for a commit takes it.

    A commit that also renames is never left to a caller: an interrupt could come between its steps. One that only syncs may be repeated.
    """

    def __init__(self, name: str, drive: Callable[[], None]) -> None:
        self._offered: deque[Work] = deque()
        self._taken: dict[int, Work] = {}
        """Commits that callers carry out now, by thread."""
        super().__init__(name, drive)

    def submit(self, job: Job, finished: Finished) -> None:
        """Offer a commit to whoever waits for it; `hand_on` or the next call gives it to the thread."""
        if isinstance(job, CommitJob) and not job.rotates:
            self._offered.append((job, finished))
        else:
            super().submit(job, finished)

    def take(self) -> bool:
        """Take the oldest commit on offer for the calling thread, and give the others to this one; False if there is none."""
        if not self._offered:
            return False
        self._taken[threading.get_ident()] = self._offered.popleft()
        self.hand_on()
        return True

    def take_lone(self, job: CommitJob, finished: Finished) -> None:
        """Take a commit that was never on offer for the calling thread."""
        self._taken[threading.get_ident()] = (job, finished)

    def finish_lone(self) -> bool:
        """Take back what the calling thread has carried out, if no other job came back in front of it; False: a turn has to."""
        if len(self.done) != 1 or self._offered:
            return False
        self.done.popleft()()
        return True

    def hand_on(self) -> None:
        """Give everything on offer to this thread."""
        while self._offered:
            super().submit(*self._offered.popleft())

    def work(self) -> None:
        """Carry out what the calling thread has taken."""
        job, finished = self._taken[threading.get_ident()]
        job.run()
        self.done.append(finished)
        del self._taken[threading.get_ident()]

    def stop(self, timeout_seconds: float) -> bool:
        """End the thread, and wait for what callers have taken; False if that did not end in time."""
        deadline = time.monotonic() + timeout_seconds
        while self._taken and time.monotonic() < deadline:
            time.sleep(_LOOK_SECONDS)
        return super().stop(timeout_seconds) and not self._taken

    def drop_taken(self) -> None:
        """Drop what the calling thread has taken: the worker's life is over, and the directory says what is durable."""
        self._taken.pop(threading.get_ident(), None)

    def give_back(self, interrupt: BaseException | None) -> None:
        """The calling thread is interrupted: what it has taken is done again by this thread, unless it had failed.

        A sync whose error was lost with the interrupt must not be repeated: it would find nothing to write, and say that all is well.
        """
        work = self._taken.pop(threading.get_ident(), None)
        if work is None or work[1] in self.done:
            return
        job, finished = work
        assert isinstance(job, CommitJob), "nothing else is on offer"
        job.error = job.error or _error_behind(interrupt)
        if job.error is None:
            super().submit(job, finished)
        else:
            self.done.append(finished)


def _error_behind(interrupt: BaseException | None) -> QuiverError | None:
    """The error of a system call that was being handled when an interrupt came; None if there was none.

    A caller that pushes while it handles an error of its own has that one behind the interrupt, too. It was caught in a frame outside of
    the call, which the traceback of the interrupt does not have yet.
    """
    frames = set(_frames_of(interrupt))
    seen: BaseException | None = interrupt
    while seen is not None:
        # Without a traceback it is an error that has just been put away.
        is_own = seen.__traceback__ is None or seen.__traceback__.tb_frame in frames
        if is_own and isinstance(seen, QuiverError):
            return seen.with_traceback(None)
        if is_own and isinstance(seen, OSError):
            return DiskError("fdatasync", "the log", seen.errno or 0, "an interrupt came with the error")
        seen = seen.__cause__ or seen.__context__
    return None


def _frames_of(error: BaseException | None) -> Iterator[FrameType]:
    trace = None if error is None else error.__traceback__
    while trace is not None:
        yield trace.tb_frame
        trace = trace.tb_next


class OpenedHere(OpenedDirectories):
    """The directories that this store has had open, in memory: its worker may be started again, and makes none of them anew."""

    def __init__(self) -> None:
        self._opened: set[tuple[str, int]] = set()

    def note(self, topic: str, core: int) -> None:
        """Note that the directory was opened."""
        self._opened.add((topic, core))

    def has(self, topic: str, core: int) -> bool:
        """Whether this store has had the directory open, and it was neither deleted nor retired since."""
        return (topic, core) in self._opened

    def forget(self, topic: str, core: int | None = None) -> None:
        """Forget one directory, or without a core all of a topic."""
        self._opened = {each for each in self._opened if each[0] != topic or core not in (None, each[1])}

    def all(self) -> list[tuple[str, int]]:
        """Every topic and core that is noted, sorted."""
        return sorted(self._opened)


class InnerConnections(Connections):
    """The connections of clients in the same process, all of them the store's own user."""

    def _connection_of(self, accepted: Any) -> tuple[WorkerEnd, Peer]:
        return accepted, Peer(os.getpid(), os.getuid(), os.getgid())


class EmbeddedWorker(Worker):
    """One life of the worker of a store. `open` recovers, in any thread; from then on all use is under the store's lock."""

    def __init__(
        self,
        context: WorkerContext,
        disk: Disk,
        *,
        opened: OpenedDirectories,
        drive: Callable[[], None],
        wake: Callable[[], None],
    ) -> None:
        """
        Args:
            opened: the directories that this store has had open.
            drive: takes the lock and has the worker take a turn.
            wake: sees to it that another thread does so, and looks at what the worker says of the disk.
        """
        self.wire = Wire(wake)
        self._opened_before = opened
        self._drive = drive
        self._wake = wake
        self._door: InnerDoor | None = None
        self._own_threads: list[JobThread] = []
        journal = Journal(context.core)
        super().__init__(
            context, disk, SystemClock(), FigurePublisher(context.region, context.core, SystemClock(), journal), journal
        )

    @property
    def cores(self) -> tuple[int, ...]:
        """The cores that are served: the own one, and the adopted ones."""
        adopted = self._adoption.cores if self._adoption is not None else ()
        return (self._context.core, *sorted(each.core for each in adopted))

    @property
    def applied_version(self) -> int:
        """The version of the list of topics for which nothing is left to do."""
        return self._adoption.applied_version if self._adoption is not None else 0

    def topic_host(self, topic: str) -> EngineHost | None:
        """The open topic of that name on the own core; None: there is none."""
        return self._topics.hosts.get(topic) if self._topics is not None else None

    def look_at_topics(self) -> None:
        """See at once whether there is a new list of topics."""
        if self._adoption is not None:
            self._adoption.look(monotonic_ns())

    def connect(self, core: int) -> ClientEnd:
        """Come in by the door of a core.

        Raises:
            UnknownCore: it is not served (any more).
            WorkerUnavailable: the worker is ending.
        """
        for adopted in self._adoption.cores if self._adoption is not None else ():
            if adopted.core == core and isinstance(adopted.listener, InnerDoor):
                return adopted.listener.connect()
        if core == self._context.core and self._door is not None:
            return self._door.connect()
        raise UnknownCore(f"this store has no core {core}: its cores are {list(self.cores)}")

    def become_ready(self) -> None:
        """Say that the worker serves."""
        self._set_state(WorkerState.READY)

    def abandon(self) -> None:
        """Let everything go as it stands, as a process does that ends; without the lock, which the threads may want."""
        loop = getattr(self, "loop", None)
        if loop is not None:
            loop.close()
        for thread in self._own_threads:
            thread.stop(_THREAD_STOP_SECONDS)
        self.close()

    def _opened_directories(self) -> OpenedDirectories:
        return self._opened_before

    def _make_poll(self) -> tuple[Poll, int]:
        return self.wire, -1

    def _start_threads(self, wake_fd: int) -> tuple[JobThread, JobThread, JobThread, JobThread]:
        # One by one: those that run are ended where the process has no descriptor for another.
        own = self._own_threads
        self.commits = CommitThread("quiver-sync", self._drive)
        own.append(self.commits)
        seal = DrivingThread("quiver-seal", self._drive)
        own.append(seal)
        ask = AskingThread("quiver-ask", self._drive)
        own.append(ask)
        cold = AskingThread("quiver-cold", self._drive)
        own.append(cold)
        return self.commits, seal, ask, cold

    def _lone_commits(self, sync: JobThread, poll: Poll) -> CarryOut:
        # Not used: lone pushes are carried out by the threads that push (`lane`).
        return sync.submit

    def _listen(self, core: int) -> InnerDoor:
        return InnerDoor(self.wire)

    def _make_connections(self, poll: Poll, adoption: Adoption, requests: Requests) -> Connections:
        self._door, access = self._listen(self._context.core), Access(self._context.settings.access)
        return InnerConnections(poll, self._door, access, adoption, requests, self._figures, self._journal)

    def _tell_supervisor(self) -> None:
        self._wake()

    def _rest(self, seconds: float) -> None:
        raise StorageFull(f"no room to open {self._context.data_dir}: make room on its disk, then open it again")
