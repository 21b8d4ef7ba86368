"""The lock of a store and the waiting of its callers: an exchange without sockets.

All exchanges of a store share its one lock. A thread that calls takes a step of its flow, then has the worker take a turn, which handles
what the step has sent; answers are handed to the channels before the lock is left. A thread that would wait for the disk syncs by
itself if a commit is due that nobody has begun (`worker.CommitThread`), and else sleeps until something was handled for it.
"""

from __future__ import annotations

import contextlib
import os
import queue
import select
import threading
from typing import Protocol, TypeVar

from quiver_actors.base.locks import new_lock
from quiver_actors.client.exchange import Exchange, Flow, Watched, seconds_until
from quiver_actors.errors import ClosedError

T = TypeVar("T")


class Work(Protocol):
    """A commit that a thread has taken."""

    def work(self) -> None:
        """Carry it out, without the lock."""


class Driver(Protocol):
    """What an exchange needs of its store. All but `lock` and `work` with the lock held."""

    lock: threading.Lock

    def turn(self) -> None:
        """Have the worker handle what was sent to it, and hand its answers over."""

    def attend(self, *, is_attended: bool) -> None:
        """Say whether this thread is about to have the worker take a turn, so that no other has to be woken for it."""

    def wake(self) -> None:
        """See to it that a turn follows, in another thread. Needs no lock."""

    def take_work(self) -> Work | None:
        """Take a commit that nobody has begun, for this thread; None if there is none."""

    def hand_on(self) -> None:
        """Give commits that nobody has begun to the thread that syncs."""

    def give_work_back(self, interrupt: BaseException) -> None:
        """Leave what `take_work` has taken to another thread, as this one was interrupted. Needs no lock."""

    def listen(self, number: int, exchange: StoreExchange) -> None:
        """Have an exchange told of what arrives for a number."""


class _Sleeper:
    """A thread that waits for an answer."""

    __slots__ = ("bell",)

    def __init__(self) -> None:
        self.bell: queue.SimpleQueue[None] = queue.SimpleQueue()


class StoreExchange(Exchange):
    """An exchange whose connections lead to the worker of the same store."""

    has_worker_inside = True

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self._sleepers: set[_Sleeper] = set()
        self._has_heard = False
        self._forked_from = 0
        """The process that the store is open in, if this is a fork of it; else 0."""
        super().__init__()

    def check_open(self) -> None:
        """
        Raises:
            ClosedError: `close` has been called, or this process is a fork of the one that opened the store.
        """
        if self._forked_from:
            raise ClosedError(
                f"this store is open in process {self._forked_from}, of which this process is a fork: one process uses a data directory. "
                "Open another directory here, or start a node and connect to it from both"
            )
        super().check_open()

    def watch(self, fd: int, watched: Watched) -> None:
        """Be told of what arrives for a connection."""
        self._watched[fd] = watched
        self._driver.listen(fd, self)

    def watch_writable(self, fd: int, *, wanted: bool) -> None:
        """Do nothing: these connections can always be written to."""

    def unwatch(self, fd: int) -> None:
        """Be told no more of what arrives for a connection."""
        self._watched.pop(fd, None)

    def hear(self, number: int) -> None:
        """Handle what has arrived for a connection, with the lock held."""
        self._has_heard = True
        self.notify()
        watched = self._watched.get(number)
        if watched is not None:
            watched.handle_events(select.EPOLLIN)

    def notify(self) -> None:
        """Let all waiting threads look again."""
        for sleeper in self._sleepers:
            sleeper.bell.put(None)
        self._sleepers.clear()

    def look(self) -> None:
        """Have the worker take a turn, without waiting."""
        self._driver.turn()

    def run(self, flow: Flow[T]) -> T:
        """Drive a flow to its end, and the worker with it. Takes the lock. Raises as the base class."""
        driver, sleeper = self._driver, _Sleeper()
        try:
            while True:
                with self.lock:
                    self._sleepers.discard(sleeper)
                    self.check_open()
                    try:
                        deadline_ns = self._advance(flow)
                    except StopIteration as stop:
                        driver.turn()
                        driver.hand_on()
                        result: T = stop.value
                        return result
                    taken = driver.take_work()
                    if taken is None:
                        self._sleepers.add(sleeper)
                if taken is not None:
                    taken.work()
                    continue
                self._sleep(sleeper.bell, deadline_ns)
        except BaseException as error:
            driver.give_work_back(error)
            driver.wake()
            with self.lock:
                self._sleepers.discard(sleeper)
                flow.close()
            raise

    def _sleep(self, bell: queue.SimpleQueue[None], deadline_ns: int) -> None:
        """Wait, without the lock, until something was handled or the time is over."""
        with contextlib.suppress(queue.Empty):
            bell.get(timeout=seconds_until(deadline_ns))

    def _advance(self, flow: Flow[T]) -> int:
        """Take steps and turns until only the disk, another thread or time can bring more. Returns when the wait ends at the latest."""
        driver = self._driver
        driver.attend(is_attended=True)
        try:
            driver.turn()
            while True:
                self._has_heard = False
                deadline_ns = self._step(flow)
                driver.turn()
                if not self._has_heard:
                    return deadline_ns
        finally:
            driver.attend(is_attended=False)

    def _renew(self) -> None:
        self.lock = self._driver.lock
        self._poller = None

    def _release(self) -> None:
        self._sleepers.clear()

    def renew_in_child(self) -> None:
        """Refuse everything from now on: a fork has no part in the store."""
        self.lock = new_lock()
        if not self.is_closed:
            self.is_closed = True
            self._forked_from = self._forked_from or os.getppid()
            self._watched.clear()
            self._sleepers.clear()
