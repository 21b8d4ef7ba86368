"""One lock, and one place to wait, for all threads that use a set of channels.

Whoever waits first reads for everybody: that thread leaves the lock, polls all sockets, takes the lock back, hands what arrived to the
channels and wakes the others. So any number of threads push over one connection and their bundles ride on the same sync of
the worker, without a thread of our own (which a fork would lose). The one thread of `later` sends what is due while nobody calls.

A signal may raise between any two steps of Python, such as KeyboardInterrupt in the main thread. So the lock is held by `with` alone, as
the interpreter lets nothing come between a lock of its own and its `with`; nothing that waits holds it; and where a flow is
interrupted in a step, the connections are made anew, as after any other loss.

Invariants:
- State of the exchange and of its channels is only touched under the lock; only the poll itself runs outside of it.
- At most one thread polls; sockets that are added or dropped meanwhile take effect at once. It stops being that one however its call ends.
- In a forked child nothing of the parent is used: locks and descriptors are replaced before the child's first line runs.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import queue
import select
import time
import weakref
from collections.abc import Callable, Generator, Iterable
from typing import Any, Protocol, TypeAlias, TypeVar

from quiver_actors.base.locks import new_lock
from quiver_actors.base.units import SECOND_NS
from quiver_actors.client import later
from quiver_actors.errors import ClosedError, QuiverError, UsageError, WorkerUnavailable

FOREVER_NS = 1 << 63
"""A deadline that never comes."""
_LOOKS_MAX = 16
"""Most polls of the connections in one `look()`."""

T = TypeVar("T")

Flow: TypeAlias = Generator[int, None, T]
"""A call that may have to wait. It runs with the lock held and does no I/O that blocks: it yields until when it waits at the longest
(monotonic ns), looks again when it is resumed, which may be early, and returns its result. Threads and asyncio drive the same flows."""

Steps: TypeAlias = Generator[Flow[Any], Any, T]
"""A call in several flows, with work outside of the lock between them: yields each flow, and is resumed with its result or error."""


def deadline_after(timeout_seconds: float | None) -> int:
    """The monotonic time in ns that lies `timeout_seconds` ahead; None = never.

    Raises:
        UsageError: it is no number.
    """
    if timeout_seconds is None:
        return FOREVER_NS
    try:
        return time.monotonic_ns() + round(timeout_seconds * float(SECOND_NS))
    except (TypeError, ValueError, OverflowError):
        raise UsageError(f"a timeout of {timeout_seconds!r} is not possible: expected a number of seconds") from None


def side_by_side(flows: Iterable[Flow[T]], at_once: int) -> Flow[list[T]]:
    """Drive many flows, some at a time, and return their results in their order: their questions share the ways to the workers.

    Raises what the first of them raises that fails; the others are closed.
    """
    ahead = enumerate(flows)
    results: dict[int, T] = {}
    active: dict[int, Flow[T]] = {}
    try:
        while True:
            active.update(itertools.islice(ahead, at_once - len(active)))
            if not active:
                return [results[number] for number in sorted(results)]
            waits_until = {}
            for number, flow in active.items():
                try:
                    waits_until[number] = next(flow)
                except StopIteration as stop:
                    results[number] = stop.value
            is_waiting = len(waits_until) == len(active)
            active = {number: active[number] for number in waits_until}
            if is_waiting:
                yield min(waits_until.values())
    finally:
        for flow in active.values():
            flow.close()


class Watched(Protocol):
    """The owner of one socket that an exchange watches. Called with the lock held."""

    def handle_events(self, events: int) -> None:
        """The socket is readable or writable (`select.EPOLLIN`, `EPOLLOUT`, ...)."""

    def break_off(self) -> None:
        """Handle the interrupt of a call in the middle of a step: what the step began on the socket cannot be relied on."""

    def abandon(self) -> None:
        """Drop the parent's socket in a forked child, without a message to the peer."""


class Waiter:
    """A thread's place among those that wait, for the time of one call."""

    __slots__ = ("bell", "ready")

    def __init__(self) -> None:
        self.ready: list[tuple[int, int]] = []
        """Events that the waiter's own poll has found, if it is the waiter that polls."""
        self.bell: queue.SimpleQueue[None] = queue.SimpleQueue()
        """Queue that wakes a waiter that does not poll. It may ring more than once."""


class Exchange:
    """The lock of a client or subscription, and the readiness of its sockets.

    Raises:
        WorkerUnavailable: this process has no descriptor left.
    """

    has_worker_inside = False
    """Whether the worker is in this process, and ends with it."""

    def __init__(self) -> None:
        self._watched: dict[int, Watched] = {}
        self.is_closed = False
        """Whether `close` was called; nothing else sets it."""
        self._poller: Waiter | None = None
        self._waiting: set[Waiter] = set()
        """Waiters that do not poll, until they are woken."""
        try:
            self._renew()
        except OSError as error:
            raise WorkerUnavailable(
                f"no connection to a worker can be made: {error.strerror}; close files, or raise the limit of open files (ulimit -n)"
            ) from error
        _exchanges.add(self)

    def check_open(self) -> None:
        """
        Raises:
            ClosedError: `close` has been called.
        """
        if self.is_closed:
            raise closed_error()

    def watch(self, fd: int, watched: Watched) -> None:
        """Read a descriptor whenever epoll reports it; the caller keeps owning the descriptor."""
        self._watched[fd] = watched
        self._epoll.register(fd, select.EPOLLIN)

    def watch_writable(self, fd: int, *, wanted: bool) -> None:
        """Begin or end waiting until a watched descriptor can be written to."""
        self._epoll.modify(fd, select.EPOLLIN | select.EPOLLOUT if wanted else select.EPOLLIN)

    def unwatch(self, fd: int) -> None:
        """Stop watching a descriptor; call this before the descriptor is closed."""
        if self._watched.pop(fd, None) is not None:
            # An interrupt may have come before it was registered.
            with contextlib.suppress(FileNotFoundError):
                self._epoll.unregister(fd)

    def run(self, flow: Flow[T]) -> T:
        """Drive a flow to its end; this thread waits. Takes the lock.

        Raises:
            ClosedError: the exchange was closed, now or meanwhile.
            And what the flow raises.
        """
        waiter: Waiter | None = None
        try:
            while True:
                with self.lock:
                    if waiter is not None:
                        self._returned(waiter)
                    self.check_open()
                    deadline_ns = self._step(flow)
                    waiter = waiter or Waiter()
                    self._queue(waiter)
                self._wait(waiter, seconds_until(deadline_ns))
        except StopIteration as stop:
            result: T = stop.value
            return result
        except BaseException:
            with self.lock:
                if waiter is not None:
                    self._returned(waiter)
                    self._wake_all()
                flow.close()
            raise

    def run_steps(self, steps: Steps[T]) -> T:
        """Drive the flows of a call, one after the other. The lock must not be held."""
        try:
            flow = next(steps)
            while True:
                try:
                    result = self.run(flow)
                except BaseException as error:  # noqa: BLE001 - the steps decide what it means
                    flow = steps.throw(error)
                else:
                    flow = steps.send(result)
        except StopIteration as stop:
            returned: T = stop.value
            return returned

    def notify(self) -> None:
        """Let all waiting threads look again, with the lock held: something changed that no socket will tell them."""
        self._wake_all()
        if self._poller is not None:
            os.eventfd_write(self._wakeup, 1)

    def call_at(self, due_at_ns: int, call: Callable[[], None]) -> None:
        """Have `call` called at that monotonic time, with the lock held, also while no call of the user runs."""
        later.schedule(due_at_ns, self.lock, call)

    def close(self) -> None:
        """Make every waiting and every later call raise. The owner closes its channels first. Idempotent."""
        with self.lock:
            if self.is_closed:
                return
            self.is_closed = True
            self.notify()
            if self._poller is None:
                self._release()

    def fileno(self) -> int:
        """Readable when `handle_ready` has something to do: for an event loop that waits instead of a thread."""
        return self._epoll.fileno()

    def handle_ready(self) -> None:
        """Handle what has arrived, without waiting, with the lock held."""
        self._handle(self._epoll.poll(0))

    def look(self) -> None:
        """Handle arrived messages, with the lock held, unless a thread polls for them: for calls that need not wait."""
        for _ in range(_LOOKS_MAX if self._poller is None else 0):
            # A message with a descriptor ends what one look reads.
            ready = self._epoll.poll(0)
            if not ready:
                break
            self._handle(ready)
            self.notify()

    def _handle(self, ready: list[tuple[int, int]]) -> None:
        for fd, events in ready:
            watched = self._watched.get(fd)
            if watched is not None:
                watched.handle_events(events)
            elif fd == self._wakeup:
                os.eventfd_read(fd)

    def _step(self, flow: Flow[Any]) -> int:
        try:
            return next(flow)
        except (StopIteration, QuiverError):
            raise
        except BaseException:
            self.break_off()
            raise

    def break_off(self) -> None:
        """End all connections, with the lock held, as an interrupt came in the middle of a step: what it began cannot be relied on."""
        for watched in list(self._watched.values()):
            watched.break_off()
        # Those who wait for an answer on them get none.
        self.notify()

    # --- for a thread that reads the one answer that it waits for by itself (`lone_lane`) ----------------------------------

    def begin_poll(self, waiter: Waiter) -> bool:
        """Have the calling thread poll for all, with the lock held; False: another thread does, or the exchange is closed."""
        if self._poller is not None or self.is_closed:
            return False
        self._poller = waiter
        return True

    def end_poll(self, waiter: Waiter, number: int) -> bool:
        """End what `begin_poll` began, with the lock held. True: nothing but `number` is readable, and the caller reads it; else what has
        arrived was handled. Idempotent."""
        ready = waiter.ready
        if len(ready) != 1 or ready[0] != (number, select.EPOLLIN) or self._waiting or self.is_closed:
            self._returned(waiter)
            return False
        waiter.ready = []
        self._poller = None
        return True

    def _queue(self, waiter: Waiter) -> None:
        """Enter a thread that is about to wait: it polls if no other thread does."""
        if self._poller is None:
            self._poller = waiter
        else:
            self._waiting.add(waiter)

    def _wait(self, waiter: Waiter, timeout_seconds: float | None) -> None:
        """Wait, without the lock, until something was handled or the time is over. May return early."""
        if self._poller is waiter:
            waiter.ready = self._epoll.poll(timeout_seconds)
        else:
            with contextlib.suppress(queue.Empty):
                waiter.bell.get(timeout=timeout_seconds)

    def _returned(self, waiter: Waiter) -> None:
        """Take out a thread that waits no longer, and handle the events that it polled. Idempotent."""
        if self._poller is not waiter:
            self._waiting.discard(waiter)
            return
        ready, waiter.ready = waiter.ready, []
        try:
            self._handle(ready)
        finally:
            self._poller = None
            self._wake_all()
            if self.is_closed:
                self._release()

    def _wake_all(self) -> None:
        for waiter in self._waiting:
            waiter.bell.put(None)
        self._waiting.clear()

    def _renew(self) -> None:
        self.lock = new_lock()
        """The lock of all channels. Hold it by `with`, for a moment, and then call `check_open`. A forked child has another one."""
        self._poller = None
        self._waiting.clear()
        self._epoll = select.epoll(select.EPOLL_CLOEXEC)
        self.poll = self._epoll.poll
        """Waits at most so many seconds and returns what is ready, without the lock, between `begin_poll` and `end_poll`."""
        self._wakeup = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._close_wakeup = weakref.finalize(self, os.close, self._wakeup)
        self._epoll.register(self._wakeup, select.EPOLLIN)

    def _release(self) -> None:
        self._epoll.close()
        self._close_wakeup()

    def renew_in_child(self) -> None:
        """Replace what is the parent's, in a forked child before its first line runs."""
        if self.is_closed:
            return
        watched = list(self._watched.values())
        self._watched.clear()
        # Closed, not unregistered from: the parent polls the same kernel object.
        self._release()
        self._renew()
        for each in watched:
            each.abandon()


def closed_error() -> ClosedError:
    """Return the error for a call of something that was closed."""
    return ClosedError("this client, store or subscription was closed: open a new one")


def seconds_until(deadline_ns: int) -> float | None:
    """Return the seconds from now to the deadline, at least 0; None for a deadline that never comes."""
    if deadline_ns >= FOREVER_NS:
        return None
    return max(0, deadline_ns - time.monotonic_ns()) / SECOND_NS


_exchanges: weakref.WeakSet[Exchange] = weakref.WeakSet()


def _renew_all_in_child() -> None:
    for exchange in list(_exchanges):
        exchange.renew_in_child()


os.register_at_fork(after_in_child=_renew_all_in_child)
