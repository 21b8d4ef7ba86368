"""The life of a worker process, from the fork to its exit code.

Imported after the fork only: this is where pyarrow and numpy come in. The exit code is a `supervisor.exitcodes.ChildExit`.
"""

from __future__ import annotations

import gc
import importlib
import logging
import os
import select
import signal
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import TypeVar

from quiver_actors.base.bell import ring
from quiver_actors.base.clock import Clock, SystemClock
from quiver_actors.base.config import TopicSettings
from quiver_actors.base.descriptors import want_descriptors
from quiver_actors.base.homes import ProducerHomes
from quiver_actors.base.metrics.figures import WorkerState
from quiver_actors.base.model import DEAD_LETTER_SUFFIX
from quiver_actors.errors import QuiverError
from quiver_actors.node.node_dirs import group_of
from quiver_actors.node.opened_directories import OpenedDirectories
from quiver_actors.node.worker.access import Access
from quiver_actors.node.worker.adoption import AdoptedCore, AdoptedTopics, Adoption, bring_back, cores_to_adopt
from quiver_actors.node.worker.connections import Connections
from quiver_actors.node.worker.context import WorkerContext
from quiver_actors.node.worker.doors import Poll
from quiver_actors.node.worker.figures import FigurePublisher, tell_supervisor
from quiver_actors.node.worker.host import EngineHost
from quiver_actors.node.worker.journal import Journal
from quiver_actors.node.worker.listener import Door, Listener
from quiver_actors.node.worker.load import Load
from quiver_actors.node.worker.lone_syncs import CarryOut, LoneSyncs, input_of
from quiver_actors.node.worker.loop import WorkerLoop
from quiver_actors.node.worker.requests import Requests
from quiver_actors.node.worker.room import open_when_there_is_room
from quiver_actors.node.worker.run_queue import RunQueue
from quiver_actors.node.worker.storage import StorageShare
from quiver_actors.node.worker.threads import AskThread, JobThread
from quiver_actors.node.worker.topics import Topics
from quiver_actors.store.disk.posix import PosixDisk
from quiver_actors.store.disk.protocol import Disk
from quiver_actors.store.engine import Engine
from quiver_actors.store.retention.pressure import Pressure
from quiver_actors.supervisor.exitcodes import ChildExit
from quiver_actors.transactions.asking import OWN_LOG_NAME

_SWITCH_INTERVAL_SECONDS = 0.0005
"""Longest time that the loop holds the interpreter lock while a finished sync waits for it: this delays every acknowledgement."""
_GC_THRESHOLDS = (10_000, 10, 10)
"""Nothing that comes and goes is in a reference cycle (tests/unit/node/worker/test_lifetimes.py), so the collector finds next to nothing
and is asked rarely: a turn may make thousands of objects, which the usual 700 would walk through several times. It is asked all the same:
it counts objects and not bytes, so a cycle made by mistake, or by a library, must not wait for millions of them. What is alive after the
start is frozen."""
_DESCRIPTORS_WANTED = 16_384

T = TypeVar("T", bound=Topics)


def main(context: WorkerContext) -> int:
    """Open the engines of this core, serve until told to stop, close them. Called in the worker's main thread."""
    journal = Journal(context.core)
    figures = FigurePublisher(context.region, context.core, SystemClock(), journal)
    figures.set_state(WorkerState.STARTING)
    _prepare_process()
    # Until there is something to drain, stopping is leaving: recovery can be cut short anywhere.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(ChildExit.DRAINED))
    worker = Worker(context, PosixDisk(context.data_dir), SystemClock(), figures, journal)
    try:
        worker.open()
    except (QuiverError, OSError) as error:
        journal.error("worker.cannot_open", str(error))
        worker.close()
        figures.set_state(WorkerState.FAILED)
        return ChildExit.CANNOT_OPEN
    signal.signal(signal.SIGTERM, lambda *_: worker.loop.request_drain())
    signal.signal(signal.SIGUSR1, lambda *_: worker.loop.request_intake_stop())
    _settle_garbage()
    return worker.serve()


class Worker:
    """The parts of one worker and the order in which they come and go. Owner: the process's main thread."""

    def __init__(
        self, context: WorkerContext, disk: Disk, clock: Clock, figures: FigurePublisher, journal: Journal
    ) -> None:
        self._context = context
        self._disk = disk
        self._clock = clock
        self._figures = figures
        self._journal = journal
        self._topics: Topics | None = None
        self._adoption: Adoption | None = None
        self._pressure = Pressure()
        self._opened = self._opened_directories()
        self._is_open = False
        self._share: StorageShare
        """The worker's share of the disk; set by `open`."""
        self.loop: WorkerLoop
        """The worker's loop; set by `open`."""

    def _opened_directories(self) -> OpenedDirectories:
        return OpenedDirectories(self._context.run_dir)

    def open(self) -> None:
        """Recover every topic's engine, then listen. The call blocks, also while the disk is full.

        Raises:
            QuiverError: an engine cannot be opened; the others are open, `close` closes them.
            OSError: the socket cannot be made.
        """
        self._set_state(WorkerState.RECOVERING)
        settings = self._context.settings
        poll, wake_fd = self._make_poll()
        sync, seal, ask, cold = self._start_threads(wake_fd)
        run_queue: RunQueue[EngineHost] = RunQueue()
        lone = self._lone_commits(sync, poll)
        make_host = partial(self._host, run_queue=run_queue, lone=lone, sync=sync, seal=seal, ask=ask, cold=cold)
        topics = self._topics = self._make_topics(Topics, self._context.core, make_host, seal)
        adoption = self._adoption = Adoption(topics, self._disk, self._journal, self._opened)
        self._share = StorageShare(
            self._context.page,
            self._context.region,
            f"core_{self._context.core}",
            adoption,
            run_queue,
            self._tell_supervisor,
        )
        topics.open_all(settings.all_topics(), self._figures.heartbeat)
        self._open_dead_letters(topics)
        left = cores_to_adopt(self._context.data_dir, self._opened, self._context.core, self._context.cores)
        for core, directories in left.items():
            theirs = self._make_topics(AdoptedTopics, core, make_host, seal)
            requests = self._requests(theirs, core, seal, ask)
            listener = self._listen(core)
            like = next(iter(settings.all_topics().values()))
            now_ns = self._clock.monotonic_ns()
            adoption.adopt(AdoptedCore(core, theirs, requests, listener), directories, like, now_ns)
            self._figures.heartbeat()
        requests = self._requests(topics, self._context.core, seal, ask)
        self.loop = WorkerLoop(
            poll=poll,
            connections=self._make_connections(poll, adoption, requests),
            topics=topics,
            adoption=adoption,
            run_queue=run_queue,
            threads=[sync, seal, ask, cold],
            wake_fd=wake_fd,
            figures=self._figures,
            journal=self._journal,
            share=self._share,
            load=Load(self._pressure),
        )
        self._share.started()
        self._is_open = True

    def _make_poll(self) -> tuple[Poll, int]:
        """Return what the loop waits on, and the descriptor by which threads wake it."""
        wake_fd, poll = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK), select.epoll()
        # Edge-triggered: each write wakes the loop once, and nobody has to read the counter back.
        poll.register(wake_fd, select.EPOLLIN | select.EPOLLET)
        return poll, wake_fd

    def _lone_commits(self, sync: JobThread, poll: Poll) -> CarryOut:
        """Return what carries out the commits of lone pushes."""
        assert isinstance(poll, select.epoll), "it is the one of `_make_poll`"
        return LoneSyncs(sync, input_of(poll)).carry_out

    def _listen(self, core: int) -> Door:
        """Open the door by which the clients of a core come in. Raises OSError."""
        return Listener(self._context.run_dir, f"core_{core}.sock", group_of(self._context.settings.access))

    def _make_connections(self, poll: Poll, adoption: Adoption, requests: Requests) -> Connections:
        door, access = self._listen(self._context.core), Access(self._context.settings.access)
        return Connections(poll, door, access, adoption, requests, self._figures, self._journal)

    def _make_topics(self, kind: type[T], core: int, make_host: Callable[[Engine], EngineHost], seal: JobThread) -> T:
        return kind(
            self._disk,
            self._context.data_dir,
            open_engine=partial(self._open_engine, core=core),
            make_host=make_host,
            background=seal.submit,
            journal=self._journal,
        )

    def _requests(self, topics: Topics, core: int, seal: JobThread, ask: JobThread) -> Requests:
        return Requests(
            topics,
            core=core,
            arena_bytes=self._context.settings.arena_bytes,
            background=seal.submit,
            own_log=self._own_log,
            ask=ask.submit,
            count_pruned=self._figures.count_pruned,
        )

    def _start_threads(self, wake_fd: int) -> tuple[JobThread, JobThread, JobThread, JobThread]:
        """Start the threads for syncs, for all other work on the disk, for questions to other machines, and for the cold disk."""
        sync, seal = JobThread("quiver-sync", wake_fd), JobThread("quiver-seal", wake_fd)
        return sync, seal, AskThread("quiver-ask", wake_fd), AskThread("quiver-cold", wake_fd)

    def serve(self) -> ChildExit:
        """Be ready, run the loop to its end, close everything."""
        self._set_state(WorkerState.READY)
        exit_code = ChildExit.CRASHED
        try:
            exit_code = self.loop.run()
        finally:
            self._journal.event("worker.end", exit_code=int(exit_code), meaning=exit_code.name.lower())
            if self.loop.threads_stopped:
                self.close()
            self._set_state(WorkerState.FAILED if exit_code is not ChildExit.DRAINED else WorkerState.STOPPED)
        return exit_code

    def close(self) -> None:
        """Give every directory back."""
        for topic, engine in (self._topics.engines() if self._topics is not None else {}).items():
            try:
                engine.close()
            except QuiverError as error:
                # Nothing is lost by that: the next open recovers.
                self._journal.error("engine.close_failed", str(error), topic=topic)
        for engine in self._adoption.engines() if self._adoption is not None else []:
            try:
                engine.close()
            except QuiverError as error:
                self._journal.error("engine.close_failed", str(error), topic=engine.topic, core=engine.core)

    def _set_state(self, state: WorkerState) -> None:
        self._figures.set_state(state)
        self._journal.event("worker.state", level=logging.DEBUG, state=state.name.lower())
        self._tell_supervisor()

    def _tell_supervisor(self) -> None:
        tell_supervisor(self._context.wakeup_fd)

    def _open_engine(self, topic: str, settings: TopicSettings, *, core: int) -> Engine:
        def open_engine() -> Engine:
            was_open = self._opened.has(topic, core)
            if not was_open:
                bring_back(self._disk, topic, core)
            homes = ProducerHomes(self._context.cores, self._context.generation)
            directory = f"{topic}/core_{core}"
            engine = Engine.open(self._disk, directory, settings, core, self._clock, homes, was_open=was_open)
            self._note_opened(topic, core)
            return engine

        # Later there is a loop that goes on without the topic and tries it again.
        if self._is_open:
            return open_engine()
        return open_when_there_is_room(open_engine, self._journal, self._figures.heartbeat, self._rest)

    def _note_opened(self, topic: str, core: int) -> None:
        try:
            self._opened.note(topic, core)
        except OSError as error:
            # The engine serves; only a directory that is moved away before the next start of this worker is not told from a new one.
            self._journal.error("directory.not_noted", f"the run directory cannot be written: {error}", topic=topic)

    def _rest(self, seconds: float) -> None:
        time.sleep(seconds)

    @property
    def _own_log(self) -> str:
        """Path of the node's own decision log; all workers share it, so any of them can be asked."""
        return os.path.join(self._context.data_dir, OWN_LOG_NAME)

    def _host(
        self,
        engine: Engine,
        *,
        run_queue: RunQueue[EngineHost],
        lone: CarryOut,
        sync: JobThread,
        seal: JobThread,
        ask: JobThread,
        cold: JobThread,
    ) -> EngineHost:
        engine.storage.share_room(partial(self._share.admits_for, engine), partial(self._share.limit_met, engine))
        return EngineHost(
            engine,
            pressure=self._pressure,
            commit=sync.submit,
            commit_lone=lone,
            background=seal.submit,
            ask=ask.submit,
            cold=cold.submit,
            own_log=self._own_log,
            journal=self._journal,
            run_queue=run_queue,
            host_of=self._topics.hosts.get if self._topics is not None else lambda _: None,
            ring_archiver=partial(ring, self._context.archiver_bell),
        )

    def _open_dead_letters(self, topics: Topics) -> None:
        """The dead letter topics that were made for these topics before, and that the catalogue does not know yet."""
        for topic in list(topics.hosts):
            name = topic + DEAD_LETTER_SUFFIX
            if name not in topics.hosts and self._disk.exists(f"{name}/core_{self._context.core}"):
                topics.open_like(name, topic)


def _prepare_process() -> None:
    # For statistics: a thread that loaded it later would hold up the loop.
    importlib.import_module("pyarrow.compute")
    # A terminal's INT goes to every process of the group: what to do about it is the supervisor's decision.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    sys.setswitchinterval(_SWITCH_INTERVAL_SECONDS)
    # Two descriptors a connection and hundreds of segments are more than the usual soft limit.
    want_descriptors(_DESCRIPTORS_WANTED)


def _settle_garbage() -> None:
    gc.collect()
    gc.freeze()
    gc.set_threshold(*_GC_THRESHOLDS)
