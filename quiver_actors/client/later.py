"""The one background thread of a process's clients: it calls what is due while no call of the user runs; and what happens at the exit.

The thread starts with the first call that is scheduled, and does not keep the process alive. Calls run with the lock of their exchange
held. A forked child begins without the thread and without what was scheduled; its own first call starts a new thread.

At the exit of the interpreter, and of a child of `multiprocessing`, everything registered with `at_exit` is called. SIGTERM, where the
program leaves it to the system, does the same before it ends the process: the handler only gives the word to the thread, as the main
thread, which handles signals, may hold any lock in that moment.
"""

from __future__ import annotations

import atexit
import heapq
import itertools
import logging
import os
import queue
import signal
import sys
import threading
import time
import weakref
from collections.abc import Callable
from contextlib import suppress
from types import FrameType
from typing import Protocol, TypeAlias

from quiver_actors.base.units import SECOND_NS

_EXIT_LOCK_SECONDS = 0.5
"""The exit waits so long for the lock of one exchange, which a daemon thread may hold for ever."""

_Scheduled: TypeAlias = tuple[int, int, threading.Lock, Callable[[], None]]
"""When it is due (monotonic ns), its number, the lock under which it is called, and what is called."""

logger = logging.getLogger("quiver.client")


class Sends(Protocol):
    """The owner of messages that wait in this process."""

    @property
    def lock(self) -> threading.Lock:
        """The lock under which it is used."""

    def send_all(self) -> None:
        """Send what waits. Called with the lock held."""

    def settle(self) -> None:
        """Wait, for seconds at most, until what was sent is durable, if its worker ends with this process. Called without the lock."""


class BackgroundCalls:
    """The thread, and what is scheduled."""

    def __init__(self) -> None:
        self.renew()
        self._numbers = itertools.count()

    def renew(self) -> None:
        """Begin anew, without the thread: in a forked child, which has not inherited it."""
        self._thread: threading.Thread | None = None
        self._arrived: queue.SimpleQueue[_Scheduled | None] = queue.SimpleQueue()

    def schedule(self, due_at_ns: int, lock: threading.Lock, call: Callable[[], None]) -> None:
        """Have `call` called at that time, with the lock held."""
        self._arrived.put((due_at_ns, next(self._numbers), lock, call))
        self.start()

    def end_process(self) -> None:
        """Have everything sent, and the process ended by the SIGTERM that it got."""
        self._arrived.put(None)
        self.start()

    def start(self) -> None:
        """Start the thread, if it does not run."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="quiver-later", daemon=True)
            # No thread can be started while the interpreter exits: `send_at_exit` sends what waits.
            with suppress(RuntimeError):
                self._thread.start()

    def _run(self) -> None:
        scheduled: list[_Scheduled] = []
        while True:
            timeout_seconds = max(0, scheduled[0][0] - time.monotonic_ns()) / SECOND_NS if scheduled else None
            try:
                arrived = self._arrived.get(timeout=timeout_seconds)
            except queue.Empty:
                _, _, lock, call = heapq.heappop(scheduled)
                with lock:
                    _guarded(call)
            else:
                if arrived is None:
                    send_at_exit()
                    os.kill(os.getpid(), signal.SIGTERM)
                else:
                    heapq.heappush(scheduled, arrived)


_background = BackgroundCalls()
_senders: weakref.WeakSet[Sends] = weakref.WeakSet()
_hooked_processes: set[int] = set()
"""Ids of the processes, of this one and those that it was forked from, whose exit as a child of `multiprocessing` is hooked."""


def schedule(due_at_ns: int, lock: threading.Lock, call: Callable[[], None]) -> None:
    """Have `call` called at that monotonic time, with the lock held, by the background thread."""
    _background.schedule(due_at_ns, lock, call)


def at_exit(sender: Sends) -> None:
    """Have what waits sent when the process ends. The sender is held weakly."""
    _senders.add(sender)
    _hook_sigterm()
    _hook_multiprocessing()


def send_at_exit() -> None:
    """Send what waits of every sender whose lock is free or becomes free in time."""
    for sender in list(_senders):
        lock = sender.lock
        if lock.acquire(timeout=_EXIT_LOCK_SECONDS):
            try:
                _guarded(sender.send_all)
            finally:
                lock.release()
            _guarded(sender.settle)


def _guarded(call: Callable[[], None]) -> None:
    """Call it; an error is logged, as there is no caller to tell and others wait for their turn."""
    try:
        call()
    except Exception:
        logger.exception("quiver.client.later")


def _hook_sigterm() -> None:
    """Take SIGTERM over, if nobody has: only the main thread may."""
    if threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        signal.signal(signal.SIGTERM, _terminated)


def _terminated(_number: int, _frame: FrameType | None) -> None:
    # A second SIGTERM ends the process at once.
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    _background.end_process()


def _hook_multiprocessing() -> None:
    """Have what waits sent when a child of `multiprocessing` ends, which it does without `atexit`."""
    util = sys.modules.get("multiprocessing.util")
    if util is not None and os.getpid() not in _hooked_processes:
        _hooked_processes.add(os.getpid())
        util.Finalize(None, send_at_exit, exitpriority=0)


atexit.register(send_at_exit)
os.register_at_fork(after_in_child=_background.renew)
