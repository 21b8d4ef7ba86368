"""Beside the supervisor: the process of the archiver, started as a program of its own, and again after it has ended.

Owner: the process of `quiver up`. The archiver ends with it, whatever ends it: the kernel kills a child whose parent is gone.

It runs at a lower priority than the workers. Where a push and the archiver want the same processor, the push gets it; where a processor is
idle, the archiver is as fast as at any priority.
"""

from __future__ import annotations

import contextlib
import logging
import os
import select
import signal
import sys

import msgspec

from quiver_actors.base.config import NodeArchiveSettings, NodeSettings
from quiver_actors.node.node_dirs import group_of
from quiver_actors.supervisor.log import log_event
from quiver_actors.supervisor.spec import SECOND_NS, Steward

MODULE = "quiver_actors.archive"
LOOK_INTERVAL_NS = SECOND_NS
RESTART_FIRST_NS = SECOND_NS
RESTART_MAX_NS = 60 * SECOND_NS
NICENESS = 15
"""How much nicer it is than the node: beside a busy worker it gets about a thirtieth of the processor."""
_STOP_MS = 2_000


class ArchiverTask(msgspec.Struct, frozen=True, kw_only=True):
    """The input of an archiver: one JSON text on its command line."""

    node: str
    node_pid: int
    data_dir: str
    run_dir: str
    settings: NodeArchiveSettings
    bell: int
    """The event descriptor by which workers wake the archiver."""
    gid: int | None
    """Group whose members may connect to the archiver; None: only the node's user may."""
    log_format: str
    log_level: str


class ArchiverProcess:
    """A steward in front of another one that also keeps an archiver running, if the node has an archive."""

    def __init__(self, steward: Steward, settings: NodeSettings, bell: int) -> None:
        """
        Args:
            settings: with absolute directories.
            bell: see `ArchiverTask`; the caller's.
        """
        self._steward = steward
        self._settings = settings
        self._bell = bell
        self._pidfd = -1
        self._pid = 0
        self._start_ns = 0
        """Monotonic time at which the next archiver process may be started."""
        self._started_ns = 0
        self._pause_ns = RESTART_FIRST_NS

    def answer(self, subject: str, body: bytes, uid: int) -> bytes:
        """Answer one control request of the user `uid`, as the steward does."""
        return self._steward.answer(subject, body, uid)

    def reload(self) -> None:
        """Read the configuration file again, as the steward does."""
        self._steward.reload()

    def step(self, now_ns: int) -> int | None:
        """Do what is due, start the archiver where it is missing, and return the monotonic time of the next step; None: there is none."""
        due_ns = self._steward.step(now_ns)
        if not self._settings.archive.url:
            return due_ns
        self._look(now_ns)
        look_ns = now_ns + LOOK_INTERVAL_NS
        return look_ns if due_ns is None else min(due_ns, look_ns)

    def stop(self) -> None:
        """End the archiver and wait for its end. What it was about is taken up by the next one. Idempotent."""
        if self._pidfd < 0:
            return
        for number in (signal.SIGTERM, signal.SIGKILL):
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._pidfd, number)
            if self._has_ended(_STOP_MS):
                break
        with contextlib.suppress(ChildProcessError):
            os.waitpid(self._pid, 0)
        self._forget()

    def _look(self, now_ns: int) -> None:
        if self._pidfd >= 0 and self._has_ended(0):
            self._ended(now_ns)
        if self._pidfd < 0 and now_ns >= self._start_ns:
            self._start(now_ns)

    def _ended(self, now_ns: int) -> None:
        # The supervisor collects every ended child, this one too, so its exit code is not known here.
        with contextlib.suppress(ChildProcessError):
            os.waitpid(self._pid, os.WNOHANG)
        is_stable = now_ns - self._started_ns > RESTART_MAX_NS
        self._pause_ns = RESTART_FIRST_NS if is_stable else min(2 * self._pause_ns, RESTART_MAX_NS)
        self._start_ns = now_ns + self._pause_ns
        log_event("archive.ended", {"pid": self._pid, "again_in_ms": self._pause_ns // 1_000_000}, logging.WARNING)
        self._forget()

    def _start(self, now_ns: int) -> None:
        settings = self._settings
        task = ArchiverTask(
            node=settings.node_name(),
            node_pid=os.getpid(),
            data_dir=settings.data_dir,
            run_dir=settings.run_dir,
            settings=settings.archive,
            bell=self._bell,
            gid=group_of(settings.access),
            log_format=settings.log.format,
            log_level=settings.log.level,
        )
        command = [sys.executable, "-m", MODULE, msgspec.json.encode(task).decode()]
        self._started_ns = now_ns
        try:
            # A program of its own: what it loads does not survive a fork, and the supervisor must not load it.
            self._pid = os.posix_spawn(
                sys.executable,
                command,
                os.environ,
                file_actions=[(os.POSIX_SPAWN_DUP2, self._bell, self._bell)],  # or it would be closed there
                setsigmask=[],
                setsigdef=[signal.SIGTERM, signal.SIGINT, signal.SIGHUP],
            )
            self._pidfd = os.pidfd_open(self._pid)
            _give_way(self._pid)
        except OSError as error:
            self._start_ns = now_ns + self._pause_ns
            log_event("archive.not_started", {"reason": error.strerror}, logging.ERROR)

    def _has_ended(self, timeout_ms: int) -> bool:
        waiting = select.poll()
        waiting.register(self._pidfd, select.POLLIN)
        return bool(waiting.poll(timeout_ms))

    def _forget(self) -> None:
        os.close(self._pidfd)
        self._pidfd, self._pid = -1, 0


def _give_way(pid: int) -> None:
    """Lower the priority of a process that has just been started; the threads that it starts have the same one."""
    with contextlib.suppress(ProcessLookupError):
        os.setpriority(os.PRIO_PROCESS, pid, min(19, os.getpriority(os.PRIO_PROCESS, 0) + NICENESS))
        os.sched_setscheduler(pid, os.SCHED_BATCH, os.sched_param(0))
