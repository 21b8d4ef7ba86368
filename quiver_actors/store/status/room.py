"""Room on the disk as an operator sees it: which limit keeps pushes out, who keeps the data, and what helps on this very node.

Pure: a status document in, sentences out.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from quiver_actors.base.units import format_size
from quiver_actors.store.retention.limits import Limit, NoRoom

if TYPE_CHECKING:
    from quiver_actors.store.status.status_document import EngineView, StatusView

LIMIT_NAMES: dict[int, str] = {
    Limit.NONE: "",
    Limit.MIN_FREE: "retention.min_free",
    Limit.DISK: "disk",
    Limit.SIZE_CAP: "retention.size_cap",
    Limit.CAP_SHARE: "retention.cap_share",
}
_LIMITS = {name: limit for limit, name in LIMIT_NAMES.items()}
_TOPICS_NAMED = 3


def limit_met(engine: EngineView) -> str:
    """The limit for which pushes to this topic and core get no room, with its value and what was measured; empty: they get it."""
    limit = Limit(_LIMITS.get(engine.limit_name, Limit.NONE))
    return str(NoRoom(limit, engine.limit_bytes, engine.limit_measured_bytes)) if limit else ""


def waiting_for_room(status: StatusView) -> list[str]:
    """Sentences on pushes that wait for room on the disk; empty where none waits."""
    found = [
        f"pushes wait for room on core_{worker.core}: {worker.pushes_waiting:,}"
        for worker in status.workers
        if worker.pushes_waiting
    ]
    return found + [
        f"pushes to topic {share.topic} wait: it has {format_size(share.used_bytes)} of the {format_size(share.limit_bytes)}"
        " that it may have"
        for share in status.shares
        if share.wanted_bytes
    ]


def quarantined(status: StatusView) -> list[str]:
    """Topics with damaged files that are kept aside: their subscribers were told which bundles they will not get."""
    return [
        f"topic {each.topic} on core_{each.core} has {format_size(each.quarantine_bytes)} of damaged files in quarantine: "
        "`quiver verify` says what they were; they count as used space until they are deleted"
        for each in status.retention
        if each.quarantine_bytes
    ]


def advice_on_room(status: StatusView) -> list[str]:
    """Ways to make room on this node, one line each; empty where no push lacks room."""
    short = [engine for engine in status.engines if engine.limit_name]
    waiting = waiting_for_room(status)
    if not short and not waiting:
        return []
    pressed = {share.topic for share in status.shares if share.wanted_bytes}
    topics = {engine.topic for engine in short if engine.limit_name == LIMIT_NAMES[Limit.CAP_SHARE]} | pressed
    # The other limits apply to the whole node: space freed by any topic helps.
    everybody = not topics or any(engine.topic not in topics for engine in short)
    keepers = list(dict.fromkeys(engine.topic for engine in _largest_first(status.engines)))
    return [*_raise(short, status), *_release(status, [topic for topic in keepers if everybody or topic in topics])]


def _largest_first(engines: Iterable[EngineView]) -> list[EngineView]:
    return sorted((each for each in engines if each.stored_bytes), key=lambda each: -each.stored_bytes)


def _raise(short: list[EngineView], status: StatusView) -> list[str]:
    limits = {engine.limit_name: engine for engine in short}
    found = []
    if Limit.MIN_FREE in {_LIMITS.get(name) for name in limits} or LIMIT_NAMES[Limit.DISK] in limits:
        found.append(f"free space on the file system of {status.node.data_dir}")
    if (engine := limits.get(LIMIT_NAMES[Limit.MIN_FREE])) is not None:
        found[-1] += f", or lower retention.min_free ({format_size(engine.limit_bytes)})"
    if (engine := limits.get(LIMIT_NAMES[Limit.SIZE_CAP])) is not None:
        found.append(f"raise retention.size_cap ({format_size(engine.limit_bytes)})")
    if (engine := limits.get(LIMIT_NAMES[Limit.CAP_SHARE])) is not None:
        found.append(
            f"raise retention.cap_share of topic {engine.topic}, which gives it {format_size(engine.limit_bytes)} of the size cap"
        )
    return found


def _release(status: StatusView, topics: list[str]) -> list[str]:
    """One sentence for each of the topics that store most, about who keeps its data."""
    return [_release_of(status, topic) for topic in topics[:_TOPICS_NAMED]]


def _release_of(status: StatusView, topic: str) -> str:
    behind: dict[str, int] = {}
    for each in status.subscribers:
        if each.topic == topic:
            behind[each.subscriber] = behind.get(each.subscriber, 0) + each.lag_bundles
    if not behind:
        return (
            f"topic {topic} has no subscriber and keeps everything: subscribe to it, set retention.max_age or "
            f"retention.size_cap_policy = drop_oldest for it, or delete it"
        )
    last, lag_bundles = max(behind.items(), key=lambda item: item[1])
    if not lag_bundles:
        return f"no subscriber of topic {topic} is behind: what it stores is open, or kept by its retention settings"
    start = f"subscriber {last} of topic {topic} is {lag_bundles:,} bundles behind: start its consumer"
    if len(behind) == 1:
        return f"{start} (dropping it frees nothing: a topic without subscribers keeps everything)"
    return f"{start}, or drop it: `quiver subscribers drop {last} --topic {topic} --dry-run` says what that frees"
