"""The loops of an asynchronous subscription, local or of another host; see `client.consuming`."""

from __future__ import annotations

import inspect
from collections import deque
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Mapping, Sequence
from typing import Any, TypeVar

import pyarrow as pa

from quiver_actors.aio.delivery import Delivery
from quiver_actors.client.consuming import no_callback
from quiver_actors.client.gaps import GapNotice
from quiver_actors.client.gathering import Gathering, Part
from quiver_actors.client.grants import Portion
from quiver_actors.errors import ClosedError

E = TypeVar("E")
M = TypeVar("M")


async def events_of(get: Callable[[float | None], Awaitable[E | None]], idle_timeout: float | None) -> AsyncIterator[E]:
    """Yield what `get` returns, until the subscription is closed, or until nothing came for the idle timeout in seconds."""
    while True:
        try:
            event = await get(idle_timeout)
        except ClosedError:
            return
        if event is None:
            return
        yield event


async def called_with_each(
    events: AsyncIterable[Any], on_bundle: Callable[[Any], Any] | None, is_closed: Callable[[], bool]
) -> int:
    """Call `on_bundle`, a function or a coroutine function, with each delivery among the events; returns how many there were.

    Raises:
        UsageError: there is no `on_bundle`.
    """
    if on_bundle is None:
        raise no_callback()
    count = 0
    async for event in events:
        if isinstance(event, Delivery):
            try:
                with event:
                    await called(on_bundle, event)
            except ClosedError:
                if not is_closed():
                    raise
            count += 1
    return count


async def gathered(
    gathering: Gathering,
    next_portion: Callable[[int, float | None], Awaitable[Portion | GapNotice | None]],
    make: Callable[[Sequence[Part], Mapping[int, pa.Table]], M],
    take_back: Callable[[Sequence[Portion | GapNotice]], None],
) -> AsyncIterator[M | GapNotice]:
    """Yield batches, and the notices between them; see `client.consuming.gathered`."""
    found: deque[M | GapNotice] = deque()
    try:
        while not gathering.has_ended:
            try:
                while not gathering.is_ready:
                    gathering.add(await next_portion(gathering.bundles_wanted, gathering.timeout_seconds))
            except ClosedError:
                return
            found.extend(gathering.take(make))
            while found:
                yield found.popleft()
    finally:
        take_back([*gathering.left(), *(item for item in found if isinstance(item, GapNotice))])


async def called(callback: Callable[[Any], Any], argument: object) -> None:
    """Call a function or a coroutine function, and wait for it."""
    result = callback(argument)
    if inspect.isawaitable(result):
        await result
