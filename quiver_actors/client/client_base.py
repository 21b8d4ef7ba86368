"""The common part of the clients for threads (`client`) and asyncio (`aio`)."""

from __future__ import annotations

import os
import sys
from typing import Generic, NoReturn, TypeVar

from quiver_actors.client.archive_door import ArchiveDoor
from quiver_actors.client.archived_reads import ArchivedReads
from quiver_actors.client.channels import ChannelSet
from quiver_actors.client.exchange import Exchange
from quiver_actors.client.node_view import WorkerDirectory
from quiver_actors.client.pickling import refuse_pickle
from quiver_actors.client.producer import Producer
from quiver_actors.client.push_channel import PushChannel
from quiver_actors.client.requests import Requests

X = TypeVar("X", bound=Exchange)


class ClientBase(Generic[X]):
    """The parts of a client, and what it says of itself."""

    _channel_kind: type[PushChannel] = PushChannel

    def __init__(
        self, directory: WorkerDirectory, *, timeout: float, verify_checksums: bool = True, name: str | None = None
    ) -> None:
        """`name`: what its connections call themselves; None: the program's name."""
        self._directory = directory
        self._timeout_seconds = timeout
        self._verifies_checksums = verify_checksums
        self._name = name or (os.path.basename(sys.argv[0] or "python") if sys.argv else "python")
        self._exchange: X = self._new_exchange()
        kind, shared, name = self._channel_kind, (self._exchange, directory), self._name
        # Without this client, which so is in no circle, and is let go of with its last reference.
        self._channels = ChannelSet(self._exchange, directory, lambda core: kind(*shared, core, name))
        self._producer = Producer(self._channels)
        self._requests = Requests(self._channels, timeout)
        self._archived = ArchivedReads(ArchiveDoor(directory))

    @property
    def run_dir(self) -> str:
        """Absolute or given path of the node's run directory, which holds its sockets."""
        return self._directory.run_dir

    def __reduce__(self) -> NoReturn:
        refuse_pickle(self.run_dir)

    def __repr__(self) -> str:
        return f"<Client run_dir={self.run_dir} {'closed' if self._exchange.is_closed else 'open'}>"

    def _new_exchange(self) -> X:
        raise NotImplementedError
