"""The keyword arguments of a push, for methods that pass them on."""

from __future__ import annotations

from typing import TypedDict

from quiver_actors.base.envelope import TraceContext


class PushOptions(TypedDict, total=False):
    """Keyword arguments that `Client.push` and `Client.push_many` have in common; all have defaults."""

    topic: str
    """Name of the topic; default `default`."""
    key: str | bytes | None
    """Bundles of one key go to one worker, in order; None (default): all of the client do."""
    producer: str | None
    """Name of an idempotent producer; given together with `sequence`."""
    sequence: int | None
    """Number of the bundle, or of the first of many: a bundle whose number was stored before is not stored again."""
    trace_context: TraceContext | None
    """The trace that the bundles belong to."""
    timeout: float
    """Seconds; default 30."""
