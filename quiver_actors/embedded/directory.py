"""What a client asks of its node, answered by the store: which cores there are, and a connection to one of them."""

from __future__ import annotations

from typing import Protocol

from quiver_actors.embedded.wire import ClientEnd
from quiver_actors.errors import UnknownCore


class Served(Protocol):
    """The part of a store that directories see."""

    @property
    def cores(self) -> tuple[int, ...]:
        """The cores that are served."""

    def connect(self, core: int) -> ClientEnd:
        """Connect to a core. Raises UnknownCore, WorkerUnavailable."""


class StoreDirectory:
    """See `client.node_view.WorkerDirectory`. Used under the store's lock."""

    trusted_uid: int | None = None
    node_name = ""
    push_cores: tuple[int, ...] = (0,)
    retired_cores: tuple[int, ...] = ()

    def __init__(self, store: Served, data_dir: str) -> None:
        self._store = store
        self._data_dir = data_dir

    @property
    def run_dir(self) -> str:
        """Path of the data directory: there is no run directory."""
        return self._data_dir

    @property
    def data_dir(self) -> str:
        """Path of the data directory."""
        return self._data_dir

    @property
    def cores(self) -> tuple[int, ...]:
        """The cores that are served: 0, and those whose directories were adopted."""
        return self._store.cores

    def refresh(self) -> None:
        """Do nothing: what there is is always known."""

    def check_core(self, core: int) -> None:
        """Raise UnknownCore if a core is not served (any more)."""
        if core not in self._store.cores:
            raise UnknownCore(f"this store has no core {core}: its cores are {list(self._store.cores)}")

    def connect(self, core: int) -> ClientEnd:
        """Connect to a core. Raises UnknownCore, WorkerUnavailable: it is not served, or not now."""
        return self._store.connect(core)

    def connect_to_archiver(self) -> None:
        """Return None: a store has no archiver."""

    def another(self) -> StoreDirectory:
        """A directory for another exchange."""
        return StoreDirectory(self._store, self._data_dir)
