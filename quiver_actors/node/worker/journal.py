"""The reports of a worker: log lines with stable event names, and the last error for the counters page."""

from __future__ import annotations

import logging

from quiver_actors.supervisor.log import log_event


class Journal:
    """Owner: the loop thread. `last_error` and `error_count` are shown on the counters page."""

    def __init__(self, core: int) -> None:
        self._worker = f"core_{core}"
        self.last_error = ""
        self.error_count = 0

    def event(self, event: str, *, level: int = logging.INFO, **fields: object) -> None:
        """Log an event with its fields and the worker's name."""
        log_event(event, {"worker": self._worker, **fields}, level)

    def error(self, event: str, message: str, **fields: object) -> None:
        """Log an error that an operator should see, also later in `quiver status`."""
        self.event(event, level=logging.ERROR, **fields, reason=message)
        self.last_error = message
        self.error_count += 1
