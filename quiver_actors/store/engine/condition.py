"""The condition of an engine: whether it takes work, and why not. Owner: the engine, on the loop thread; its parts read it."""

from __future__ import annotations

import enum

from quiver_actors.errors import QuiverError
from quiver_actors.store.engine.events import Event, Failed


class EngineState(enum.IntEnum):
    """Part of the counters page: numbers never change."""

    RECOVERING = 1
    READY = 2
    FULL = 3
    """There is no room for the next log file; acks, progress, deletes and reads go on, ingest resumes by itself."""
    DRAINING = 4
    FAILED = 5
    CLOSED = 6
    DEGRADED = 7
    """Shown, never entered: some segment cannot be opened now, and is tried again."""
    THROTTLED = 8
    """Shown, never entered: the engine is ready, but the last push was refused for want of room under a cap, and no room came since."""


class Condition:
    """The state of one engine.

    Attributes:
        state: changed by `enter` only; what follows from it is asked for at each push, and kept.
        takes_bundles: pushes are taken, now or once there is room.
        is_draining: nothing is taken any more, everything is sealed.
        is_over: nothing more is done to the engine's files.
        failure: what made the engine fail, None while it has not.
    """

    def __init__(self) -> None:
        self.enter(EngineState.READY)
        self.failure: str | None = None

    def enter(self, state: EngineState) -> None:
        """Change to a state, and derive `takes_bundles`, `is_draining` and `is_over` from it."""
        self.state = state
        self.takes_bundles = state in (EngineState.READY, EngineState.FULL)
        self.is_draining = state is EngineState.DRAINING
        self.is_over = state in (EngineState.FAILED, EngineState.CLOSED)

    def fail(self, error: QuiverError) -> list[Event]:
        """Mark the engine as failed for good: only recovery, in another process or at the next open, makes it usable again."""
        if self.state is EngineState.FAILED:
            return []
        self.enter(EngineState.FAILED)
        self.failure = str(error)
        return [Failed(self.failure)]

    def set_full(self) -> None:
        """Change from READY to FULL; any other state stays."""
        if self.state is EngineState.READY:
            self.enter(EngineState.FULL)

    def set_roomy(self) -> None:
        """Change from FULL to READY; any other state stays."""
        if self.state is EngineState.FULL:
            self.enter(EngineState.READY)
