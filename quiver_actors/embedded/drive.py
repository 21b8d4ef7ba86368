"""The worker of a store and its clients under one lock: whoever holds it has the worker take turns.

A turn that does not come to its end leaves the worker's memory as it happened to be. So it is treated as the death of a node's worker is:
everything in memory is given up, and the next worker recovers from the directory; clients connect again and send again what was not
acknowledged. Whatever may happen in a turn, a kill at the same place would have done no more.
"""

from __future__ import annotations

import contextlib
import queue
import threading
import time
import weakref
from collections.abc import Callable

from quiver_actors.base.locks import new_lock
from quiver_actors.embedded.exchange import StoreExchange
from quiver_actors.embedded.wire import ClientEnd
from quiver_actors.embedded.worker import CommitThread, EmbeddedWorker
from quiver_actors.errors import WorkerUnavailable

FOREVER_NS = 1 << 62
_TURNS_AT_ONCE_MAX = 16
"""Turns of one caller before others get the lock."""
_SLEEP_SECONDS_MAX = 3600.0


class Alarm:
    """Wakes the clock thread of a store. Any thread may ring it, also while an object is collected."""

    def __init__(self) -> None:
        self.at_ns = FOREVER_NS
        """When the clock thread looks next, unless it is woken."""
        self._bell: queue.SimpleQueue[None] = queue.SimpleQueue()

    def ring(self) -> None:
        """Have the clock thread look at once."""
        self._bell.put(None)

    def ring_before(self, due_ns: int) -> None:
        """Have the clock thread look by then."""
        if due_ns < self.at_ns:
            self.at_ns = 0
            self._bell.put(None)

    def sleep_until(self, due_ns: int) -> None:
        """Wait in the clock thread."""
        self.at_ns = due_ns
        wait_ns = due_ns - time.monotonic_ns()
        if wait_ns > 0:
            with contextlib.suppress(queue.Empty):
                self._bell.get(timeout=min(wait_ns / 1e9, _SLEEP_SECONDS_MAX))
        with contextlib.suppress(queue.Empty):
            while True:
                self._bell.get_nowait()


class Drive:
    """The present worker of a store, its lock, and the exchanges of its clients. See `exchange.Driver`.

    Attributes:
        worker: None: there is none now.
        alarm: of the clock thread.
        has_drained: set when the worker has done everything, after it was told to drain.
    """

    def __init__(self, gave_up: Callable[[EmbeddedWorker, str, bool], None]) -> None:
        """
        Args:
            gave_up: told, under the lock, of a worker whose life is over, why, and whether the next one may begin at once.
        """
        self.lock = new_lock()
        self.alarm = Alarm()
        self.worker: EmbeddedWorker | None = None
        self.is_closing = False
        self.has_drained = threading.Event()
        self._gave_up = gave_up
        self._is_turning = False
        self._listening: weakref.WeakValueDictionary[int, StoreExchange] = weakref.WeakValueDictionary()

    # --- turns, with the lock held -----------------------------------------------------------------------------------------

    def turn(self) -> None:
        """Have the worker handle what was sent to it, and hand its answers over. The lock is held."""
        worker = self.worker
        if worker is None or self._is_turning:
            return
        self._is_turning = True
        try:
            for _ in range(_TURNS_AT_ONCE_MAX):
                if not worker.loop.step(waits=False):
                    self._end_of(worker)
                    return
                if worker.wire.heard:
                    break
                if not worker.wire.has_input and worker.loop.next_turn_ns() > time.monotonic_ns():
                    break
            next_ns = worker.loop.next_turn_ns()
        except BaseException as error:
            # In the main thread it may be what a signal handler has raised: it goes on, and says nothing against the worker.
            is_interrupt = threading.current_thread() is threading.main_thread() or not isinstance(error, Exception)
            self.give_up(f"a turn was broken off by {error!r}", at_once=is_interrupt)
            if is_interrupt:
                raise
            return
        finally:
            self._is_turning = False
        self.alarm.ring_before(next_ns)
        self.hand_over(worker)

    def settle(self, worker: EmbeddedWorker) -> None:
        """Take back finished jobs; have the worker take a whole turn only where more is to be done at once."""
        try:
            worker.loop.finish_jobs()
            next_ns = worker.loop.next_turn_ns()
        except BaseException as error:
            self.give_up(f"a job that came back was broken off by {error!r}", at_once=True)
            raise
        if next_ns == 0 or worker.wire.has_input:
            self.turn()
        else:
            self.hand_over(worker)
            self.alarm.ring_before(next_ns)
        self.hand_on()

    def _end_of(self, worker: EmbeddedWorker) -> None:
        self.hand_over(worker)
        if self.is_closing:
            self.has_drained.set()
        else:
            self.give_up("an engine failed")

    def give_up(self, why: str, *, at_once: bool = False) -> None:
        """The worker's life is over: its clients hear of it once it is closed.

        Args:
            at_once: the next one may begin without a pause.
        """
        worker, self.worker = self.worker, None
        if worker is not None:
            # What this thread has taken and not begun would be waited for.
            worker.commits.drop_taken()
            self._gave_up(worker, why, at_once)

    def hand_over(self, worker: EmbeddedWorker) -> None:
        """Give clients what a worker has sent. What an interrupt keeps from them, the next turn gives them."""
        heard = worker.wire.heard
        while heard:
            end = next(iter(heard))
            exchange = self._listening.get(end.fileno())
            if exchange is not None:
                exchange.hear(end.fileno())
            heard.pop(end, None)

    def rouse(self, worker: EmbeddedWorker) -> None:
        """Wake the threads of clients that a worker has sent something: each takes it in its own turn. A client of which no thread waits
        gets it with the next turn of anybody."""
        for end in worker.wire.heard:
            exchange = self._listening.get(end.fileno())
            if exchange is not None:
                exchange.notify()

    def attend(self, *, is_attended: bool) -> None:
        """See `exchange.Driver`."""
        if self.worker is not None:
            self.worker.wire.is_attended = is_attended

    def take_work(self) -> CommitThread | None:
        """See `exchange.Driver`."""
        if self.worker is not None and self.worker.commits.take():
            return self.worker.commits
        return None

    def hand_on(self) -> None:
        """See `exchange.Driver`."""
        if self.worker is not None:
            self.worker.commits.hand_on()

    def listen(self, number: int, exchange: StoreExchange) -> None:
        """See `exchange.Driver`."""
        self._listening[number] = exchange

    @property
    def cores(self) -> tuple[int, ...]:
        """The cores that are served."""
        return self.worker.cores if self.worker is not None else (0,)

    def connect(self, core: int) -> ClientEnd:
        """Connect to a core.

        Raises:
            UnknownCore: it is not served (any more).
            WorkerUnavailable: the store is being recovered.
        """
        if self.worker is None:
            raise WorkerUnavailable("the store recovers its directory after an error")
        return self.worker.connect(core)

    # --- without the lock ----------------------------------------------------------------------------------------------------

    def drive(self) -> None:
        """Take the lock and have the worker take a turn."""
        with self.lock:
            self.turn()

    def wake(self) -> None:
        """Have the clock thread take a turn soon. Any thread may call it, also while an object is collected."""
        self.alarm.ring()

    def give_work_back(self, interrupt: BaseException) -> None:
        """See `exchange.Driver`."""
        worker = self.worker
        if worker is not None:
            worker.commits.give_back(interrupt)
