"""The clock that clients go by, in the hands of a test: it stands still for a slow machine, and goes ahead where nobody wants to wait."""

from __future__ import annotations

import time

MODULES = (
    "quiver_actors.aio.subscription",
    *(
        f"quiver_actors.client.{name}"
        for name in (
            "channel",
            "channels",
            "consumer",
            "exchange",
            "leases",
            "push_channel",
            "questions",
            "resolutions",
            "retry",
            "sender",
            "stage",
            "subscriber_channel",
            "subscriber_channels",
            "subscriber_requests",
            "subscription",
        )
    ),
)
"""Whose `time` it takes the place of."""


class ClientClock:
    """The real one, but for what a test does to it. A call that waits looks at it when something has arrived, or when it would by the
    real one."""

    def __init__(self) -> None:
        self.ahead_ns = 0
        self._stopped_at_ns: int | None = None

    def monotonic_ns(self) -> int:
        now_ns = time.monotonic_ns() if self._stopped_at_ns is None else self._stopped_at_ns
        return now_ns + self.ahead_ns

    def stop(self) -> None:
        """It shows the same time from now on, plus what is added to `ahead_ns`."""
        self._stopped_at_ns = time.monotonic_ns()

    def go_on(self) -> None:
        self._stopped_at_ns = None
