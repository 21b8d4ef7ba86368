"""The embedded store: a node with one core in the calling process. `quiver_actors.open` is its door.

The engine, the worker around it and the client are the ones of a node; here they are joined without a process, a socket or an arena, and
the threads that call drive them. `node` has the life of a store, `drive` what is under one lock, `wire` the way between client and worker.
"""

from __future__ import annotations

from quiver_actors.embedded.store import Store, open

__all__ = ["Store", "open"]
