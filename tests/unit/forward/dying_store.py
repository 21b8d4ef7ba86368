"""A writer that is killed at one of its calls: `python -m tests.unit.forward.dying_store URL CALLS`.

It writes bundles 1 to 3 as one file, and dies by SIGKILL after that many calls that write to the store.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from typing import Any

from quiver_actors.forward.bundle_files import origin_of
from quiver_actors.forward.object_files import ObjectFiles
from quiver_actors.forward.parts import Part
from quiver_actors.store.objects.object_store import ObjectStore
from quiver_actors.store.objects.opening import open_store
from tests.unit.forward.stored import Stored, as_delivery

WRITES = ("create", "replace", "put", "delete")


class DyingStore:
    """Passes calls on to a store, until a number of them have written."""

    def __init__(self, store: ObjectStore, calls: int) -> None:
        self._store = store
        self._left = calls

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._store, name)
        return self._counted(found) if name in WRITES else found

    def _counted(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*arguments: Any) -> Any:
            if not self._left:
                os.kill(os.getpid(), signal.SIGKILL)
            self._left -= 1
            return call(*arguments)

        return counted


def main(url: str, calls: int) -> None:
    stored = [Stored(number) for number in (1, 2, 3)]
    parts = [Part(as_delivery(each), (0, each.number), each[0]) for each in stored]
    files = ObjectFiles(DyingStore(open_store(url), calls), "slot_0")
    files.write(origin_of(parts[0].delivery), parts, "zstd")
    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
