"""The loops of a subscription, local or of another host: iterating, calling `on_bundle`, and gathering batches."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import pyarrow as pa

from quiver_actors.client.delivery import Delivery
from quiver_actors.client.gaps import GapNotice
from quiver_actors.client.gathering import Gathering, Part
from quiver_actors.client.grants import Portion
from quiver_actors.errors import ClosedError, UsageError

E = TypeVar("E")
M = TypeVar("M")


def events_of(get: Callable[[float | None], E | None], idle_timeout: float | None) -> Iterator[E]:
    """Yield what `get` returns, until the subscription is closed, or until nothing came for the idle timeout in seconds."""
    while True:
        try:
            event = get(idle_timeout)
        except ClosedError:
            return
        if event is None:
            return
        yield event


def called_with_each(
    events: Iterable[Any], on_bundle: Callable[[Any], Any] | None, is_closed: Callable[[], bool]
) -> int:
    """Call `on_bundle` with each delivery among the events; returns how many there were. See `Subscription.run`.

    Raises:
        UsageError: there is no `on_bundle`.
    """
    if on_bundle is None:
        raise no_callback()
    count = 0
    for event in events:
        if isinstance(event, Delivery):
            try:
                with event:
                    on_bundle(event)
            except ClosedError:
                # Closed while it had the bundle, which went back by that: the next look ends the loop.
                if not is_closed():
                    raise
            count += 1
    return count


def gathered(
    gathering: Gathering,
    next_portion: Callable[[int, float | None], Portion | GapNotice | None],
    make: Callable[[Sequence[Part], Mapping[int, pa.Table]], M],
    take_back: Callable[[Sequence[Portion | GapNotice]], None],
) -> Iterator[M | GapNotice]:
    """Yield batches, and the notices between them, until the subscription is closed or nothing came for its idle timeout.

    Args:
        next_portion: takes the next bundles, at most so many, or a notice; None: nothing came within so many seconds.
        make: makes the batch of its bundles and the tables of their slots.
        take_back: gets what was taken and not yielded, when the caller wants no more.
    """
    found: deque[M | GapNotice] = deque()
    try:
        while not gathering.has_ended:
            try:
                while not gathering.is_ready:
                    gathering.add(next_portion(gathering.bundles_wanted, gathering.timeout_seconds))
            except ClosedError:
                return
            found.extend(gathering.take(make))
            while found:
                yield found.popleft()
    finally:
        take_back([*gathering.left(), *(item for item in found if isinstance(item, GapNotice))])


def no_callback() -> UsageError:
    """The error of `run` without a callback."""
    return UsageError("run needs a callback: subscribe with on_bundle=")


def check_bundles_max(bundles_max: int) -> None:
    """Raise UsageError where `get_many` is asked for no bundle."""
    if bundles_max < 1:
        raise UsageError(f"bundles_max {bundles_max} is not possible: expected at least 1")
