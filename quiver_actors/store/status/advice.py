"""One line of advice for each state of a node, a worker or a topic. `room` has the advice about missing space.

docs/operations.md says it at length. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from quiver_actors.base.units import format_size
from quiver_actors.store.status.room import limit_met

if TYPE_CHECKING:
    from quiver_actors.store.status.status_document import EngineView

ADVICE = {
    "dead": "start it again with `quiver up`: nothing that was acknowledged is lost",
    "failed": "see the errors below and the kernel's log; a topic recovers by itself, a worker that was given up at a restart of the node",
    "hung": "it is being ended and started again; the log has the stacks of its threads",
    "silent": "wait a moment: the supervisor will act; if it lasts, look for a disk that does not answer in the kernel's log",
    "stopped": "somebody has stopped its process: `kill -CONT` its pid",
    "restarting": "it comes back by itself; its last exit and last error say why it died",
    "degraded": "it serves what it can and tries the rest again by itself; see which of its workers or topics it is, and the errors below",
    "closed": "it was stopped",
    "ended": "it was stopped",
    "draining": "it is being stopped; `quiver subscribers lag` says who is behind",
    "killing": "it is being stopped at once; what was acknowledged is replayed at the next start",
    "starting": "wait: it takes nothing yet",
    "recovering": "wait: it reads its logs",
    "unknown": "use the `quiver` of the version that the node was started with",
}
"""Advice by state. `ready` needs none; for `full` and `throttled` it depends on the limit and on who keeps the data."""


def advice_on(states: Iterable[str]) -> list[str]:
    """A line for each state that is not well, in their order."""
    return [f"{state}: {ADVICE[state]}" for state in dict.fromkeys(states) if state in ADVICE]


def problems_of_topics(engines: Iterable[EngineView]) -> list[str]:
    """A sentence for each directory of a topic that is not well."""
    found = []
    for engine in engines:
        place = f"topic {engine.topic} on core_{engine.core}"
        if engine.state != "ready":
            found.append(f"{place} is {engine.state}" + (f": {met}" if (met := limit_met(engine)) else ""))
        if engine.cold_away:
            found.append(
                f"{place}: the cold disk cannot be used: nothing moves there, and the {format_size(engine.cold_bytes)} on it may not be"
                " readable; nothing is lost; see the errors `cold.away` in the log for the reason"
            )
        if engine.segments_deleted_by_others:
            found.append(
                f"{place}: somebody has deleted {engine.segments_deleted_by_others:,} of its segments since the worker started, and its"
                " subscribers were told: find out who, then restart the node"
            )
    return found
