"""Whether an engine takes work, and why it does not. Owner: the engine, on the loop thread; its parts read it."""

from __future__ import annotations

import enum

from quiver_actors.errors import QuiverError
from quiver_actors.events import Event, Failed


class EngineState(enum.IntEnum):
    RECOVERING = 1
    READY = 2
    FULL = 3
    """No room for the next log file; acks, progress, deletes and reads go on, ingest resumes by itself."""
    DRAINING = 4
    FAILED = 5
    CLOSED = 6


class Condition:
    """The state of one engine.

    Attributes:
        failure: what failed it, None while it has not.
    """

    def __init__(self) -> None:
        self.state = EngineState.READY
        self.failure: str | None = None

    @property
    def takes_bundles(self) -> bool:
        """Pushes are taken, now or once there is room."""
        return self.state in (EngineState.READY, EngineState.FULL)

    @property
    def is_draining(self) -> bool:
        return self.state is EngineState.DRAINING

    @property
    def is_over(self) -> bool:
        """Nothing more is done to its files."""
        return self.state in (EngineState.FAILED, EngineState.CLOSED)

    def fail(self, error: QuiverError) -> list[Event]:
        """Sticky: only recovery, in another process or at the next open, makes good of it."""
        if self.state is EngineState.FAILED:
            return []
        self.state = EngineState.FAILED
        self.failure = str(error)
        return [Failed(self.failure)]

    def set_full(self) -> None:
        if self.state is EngineState.READY:
            self.state = EngineState.FULL

    def set_roomy(self) -> None:
        if self.state is EngineState.FULL:
            self.state = EngineState.READY
