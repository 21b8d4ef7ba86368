"""An exchange whose waiting is done by an event loop.

The loop watches the exchange's poll descriptor: what arrives is handled by the loop, whether or not a call waits for it. All use is
from the loop's thread, so that its lock is never contended.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

from quiver_actors.client.exchange import Exchange, Flow, Steps, seconds_until

T = TypeVar("T")


class LoopExchange(Exchange):
    """The exchange must be made, used and closed in one running event loop."""

    def __init__(self) -> None:
        super().__init__()
        self._loop = asyncio.get_running_loop()
        self._waiters: set[asyncio.Future[None]] = set()
        self._loop.add_reader(self.fileno(), self._ready)

    async def complete(self, flow: Flow[T]) -> T:
        """Drive a flow to its end. Cancelling abandons the flow.

        Raises:
            ClosedError: the exchange was closed, now or meanwhile.
            And what the flow raises.
        """
        try:
            while True:
                with self.lock:
                    self.check_open()
                    deadline_ns = self._step(flow)
                    waiter = self._waiter(deadline_ns)
                await waiter
        except StopIteration as stop:
            result: T = stop.value
            return result
        finally:
            with self.lock:
                flow.close()

    async def complete_steps(self, steps: Steps[T]) -> T:
        """Drive the flows of a call, one after the other."""
        try:
            flow = next(steps)
            while True:
                try:
                    result = await self.complete(flow)
                except BaseException as error:  # noqa: BLE001 - the steps decide what it means
                    flow = steps.throw(error)
                else:
                    # A flow may not have had to wait: other tasks get their turn.
                    await asyncio.sleep(0)
                    flow = steps.send(result)
        except StopIteration as stop:
            returned: T = stop.value
            return returned

    def notify(self) -> None:
        """Wake every coroutine that waits for something to happen."""
        for waiter in self._waiters:
            _wake(waiter)

    def call_at(self, due_at_ns: int, call: Callable[[], None]) -> None:
        """Have `call` called by the event loop at that monotonic time, with the lock held."""
        self._loop.call_later(seconds_until(due_at_ns) or 0, self._call, call)

    def close(self) -> None:
        """Stop watching in the event loop, and close all connections. Idempotent."""
        if not self.is_closed:
            self._loop.remove_reader(self.fileno())
        super().close()

    def _waiter(self, deadline_ns: int) -> asyncio.Future[None]:
        """Return when something was handled, or at the deadline."""
        waiter: asyncio.Future[None] = self._loop.create_future()
        self._waiters.add(waiter)
        waiter.add_done_callback(self._waiters.discard)
        seconds = seconds_until(deadline_ns)
        if seconds is not None:
            timer = self._loop.call_later(seconds, _wake, waiter)
            waiter.add_done_callback(lambda _: timer.cancel())
        return waiter

    def _call(self, call: Callable[[], None]) -> None:
        with self.lock:
            call()

    def _ready(self) -> None:
        with self.lock:
            if not self.is_closed:
                self.handle_ready()
                self.notify()


def _wake(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)
