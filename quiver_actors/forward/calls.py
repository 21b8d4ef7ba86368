"""The deliverer that calls a function."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError, Future
from queue import Empty, SimpleQueue

from quiver_actors.client.delivery import Delivery
from quiver_actors.forward.deliverer import Outcome
from quiver_actors.forward.errors import TransientFailure


class Calls:
    """Delivers by calling a function, which returns when the bundle has arrived or raises why it has not.

    It may return a `concurrent.futures.Future` instead, such as that of an executor or a network client: then further bundles are
    offered while it runs, and its end is the outcome.
    """

    def __init__(self, deliver: Callable[[Delivery], Future[object] | object]) -> None:
        self._deliver = deliver
        self._decided: SimpleQueue[Outcome] = SimpleQueue()

    def offer(self, delivery: Delivery) -> None:
        """Call the function with a delivery; the result of a returned future becomes the outcome when it is done."""
        result = self._deliver(delivery)
        if isinstance(result, Future):
            result.add_done_callback(lambda future: self._decided.put(Outcome(delivery, _error_of(future))))
        else:
            self._decided.put(Outcome(delivery))

    def hurry(self) -> None:
        """Do nothing: no delivery waits here for more."""

    def outcomes(self, timeout_seconds: float) -> Sequence[Outcome]:
        """Return the outcomes that are known, and wait up to `timeout_seconds` for the first one."""
        found: list[Outcome] = []
        with contextlib.suppress(Empty):
            found.append(self._decided.get(timeout_seconds > 0, timeout_seconds or None))
            while True:
                found.append(self._decided.get_nowait())
        return found

    @property
    def finish_at_ns(self) -> int | None:
        """None: nothing is collected, so no deadline forces a result."""
        return None

    def close(self) -> None:
        """End; calls that still run end unheard, and their bundles have been given back."""


def _error_of(future: Future[object]) -> Exception | None:
    try:
        error = future.exception()
    except CancelledError:
        return TransientFailure("the delivery was cancelled")
    if error is None or isinstance(error, Exception):
        return error
    return TransientFailure(f"the delivery was interrupted: {error!r}")
