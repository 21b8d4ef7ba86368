"""The embedded store for asyncio. See `quiver_actors.embedded`, whose store this opens.

The event loop waits for no disk: commits always go to the store's thread, and answers wake the loop through a descriptor.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping
from types import TracebackType
from typing import Any, NoReturn, TypeVar

from quiver_actors.aio.client import Client
from quiver_actors.aio.exchange import LoopExchange
from quiver_actors.client.archived import Wanted
from quiver_actors.client.exchange import Flow
from quiver_actors.client.topic_commands import TopicCommands
from quiver_actors.embedded.directory import StoreDirectory
from quiver_actors.embedded.exchange import Driver, StoreExchange
from quiver_actors.embedded.node import EmbeddedNode
from quiver_actors.embedded.push_channel import DirectPushChannel
from quiver_actors.embedded.store import StoreTopicCommands, opening_of, refuse_archive, refuse_pickle

T = TypeVar("T")


async def open(
    path: str | os.PathLike[str],
    *,
    settings: Mapping[str, Any] | None = None,
    config: str | os.PathLike[str] | None = None,
    timeout: float = 10.0,
    verify_checksums: bool = True,
) -> Store:
    """Open a data directory in this process, for the running event loop; recovery runs in a thread.

    Args and raises: as `quiver_actors.open`.
    """
    opening = opening_of(path, settings, config)
    try:
        return Store(await asyncio.to_thread(opening.wait), timeout=timeout, verify_checksums=verify_checksums)
    except BaseException:
        # Cancelled, too: the thread goes on, and nobody would close what it has opened.
        opening.give_up()
        raise


class StoreLoopExchange(StoreExchange, LoopExchange):
    """An exchange of a store whose waiting is done by an event loop. Other threads may hear for it; they wake the loop."""

    def __init__(self, driver: Driver) -> None:
        self._bell = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        super().__init__(driver)

    def fileno(self) -> int:
        """Readable when something was handled."""
        return self._bell

    def notify(self) -> None:
        """Let all coroutines look again, and the thread that ends the process; the lock is held."""
        StoreExchange.notify(self)
        if self._bell >= 0:
            os.eventfd_write(self._bell, 1)

    async def complete(self, flow: Flow[T]) -> T:
        """Drive a flow to its end, and the worker with it. Raises as the base class."""
        driver = self._driver
        try:
            while True:
                with self.lock:
                    self.check_open()
                    try:
                        deadline_ns = self._advance(flow)
                    except StopIteration as stop:
                        driver.turn()
                        result: T = stop.value
                        return result
                    finally:
                        driver.hand_on()
                    waiter = self._waiter(deadline_ns)
                await waiter
        finally:
            driver.wake()
            with self.lock:
                flow.close()

    def close(self) -> None:
        """Wake every coroutine that waits, and refuse everything from now on. Idempotent."""
        super().close()
        with self.lock:
            bell, self._bell = self._bell, -1
        if bell >= 0:
            os.close(bell)
        LoopExchange.notify(self)

    def _ready(self) -> None:
        if self._bell >= 0:
            os.eventfd_read(self._bell)
        LoopExchange.notify(self)


class Store(Client):
    """See `open`. All calls of the asynchronous client; closing it closes the data directory. An asynchronous context manager."""

    _channel_kind = DirectPushChannel
    _reads_archive = False

    def __init__(self, node: EmbeddedNode, *, timeout: float, verify_checksums: bool = True) -> None:
        self._node = node
        super().__init__(StoreDirectory(node.drive, node.data_dir), timeout=timeout, verify_checksums=verify_checksums)

    async def close(self) -> None:
        """Seal what is open, make all progress durable, and give the directory back. Idempotent."""
        try:
            await super().close()
        finally:
            await asyncio.to_thread(self._node.close)

    async def __aenter__(self) -> Store:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def __reduce__(self) -> NoReturn:
        refuse_pickle()

    def __repr__(self) -> str:
        return f"<Store {self._node.data_dir} {'closed' if self._exchange.is_closed else 'open'}>"

    async def _await_archived(self, wanted: list[Wanted], timeout_seconds: float) -> None:
        refuse_archive()

    def _new_exchange(self) -> StoreLoopExchange:
        return StoreLoopExchange(self._node.drive)

    @property
    def _topic_commands(self) -> TopicCommands:
        return StoreTopicCommands(self._node, self._timeout_seconds)
