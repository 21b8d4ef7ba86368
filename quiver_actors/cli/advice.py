"""What stands in the way of pushes, and what an operator does about each state of a node, a worker or a topic, in a line each.

docs/operations.md says it at length. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from quiver_actors.units import format_size

if TYPE_CHECKING:
    from quiver_actors.cli.status_document import StatusView, SubscriberView

ADVICE = {
    "dead": "start it again with `quiver up`: nothing that was acknowledged is lost",
    "failed": "see the errors below and the kernel's log; a topic recovers by itself, a worker that was given up at a restart of the node",
    "hung": "it is being ended and started again; the log has the stacks of its threads",
    "silent": "wait a moment: the supervisor will act; if it lasts, look for a disk that does not answer in the kernel's log",
    "stopped": "somebody has stopped its process: `kill -CONT` its pid",
    "restarting": "it comes back by itself; its last exit and last error say why it died",
    "full": "free disk space, start or drop the subscriber that keeps the data (`quiver subscribers list`), or raise retention.size_cap",
    "degraded": "it serves; see which of its workers or topics does not",
    "closed": "it was stopped",
    "ended": "it was stopped",
    "draining": "it is being stopped; `quiver subscribers lag` says who is behind",
    "killing": "it is being stopped at once; what was acknowledged is replayed at the next start",
    "starting": "wait: it takes nothing yet",
    "recovering": "wait: it reads its logs",
    "unknown": "use the `quiver` of the version that the node was started with",
}
"""By state; none for `ready`."""


def advice_on(states: Iterable[str]) -> list[str]:
    """A line for each state that is not well, in their order."""
    return [f"{state}: {ADVICE[state]}" for state in dict.fromkeys(states) if state in ADVICE]


WAITING = (
    "start or drop the subscriber that keeps the data, or raise retention.size_cap or the topic's retention.cap_share"
)


def waiting_for_room(status: StatusView) -> list[str]:
    """Whose pushes wait for room on the disk, and who keeps the data; empty where none waits."""
    found = [
        f"pushes wait for room on core_{worker.core}: {worker.pushes_waiting:,}"
        for worker in status.workers
        if worker.pushes_waiting
    ]
    pressed = [share for share in status.shares if share.wanted_bytes]
    found += [
        f"pushes to topic {share.topic} wait: it has {format_size(share.used_bytes)} of the {format_size(share.limit_bytes)}"
        " that it may have"
        for share in pressed
    ]
    if not found:
        return []
    topics = {share.topic for share in pressed} or {each.topic for each in status.subscribers}
    return found + _who_keeps([each for each in status.subscribers if each.topic in topics])


def _who_keeps(subscribers: Sequence[SubscriberView]) -> list[str]:
    behind: dict[tuple[str, str], int] = {}
    for each in subscribers:
        key = each.subscriber, each.topic
        behind[key] = behind.get(key, 0) + each.lag_bundles
    (subscriber, topic), lag_bundles = max(behind.items(), key=lambda item: item[1], default=(("", ""), 0))
    if not lag_bundles:
        return ["no subscriber is behind: a topic without one keeps everything"]
    return [f"subscriber {subscriber} of topic {topic} is {lag_bundles:,} bundles behind"]
