"""What a streaming query says of bundles that it will not read. Pure.

Each text begins with the place and the topic, and says what became of the bundles.
"""

from __future__ import annotations

from quiver_actors.base.protocol.messages import Gap
from quiver_actors.spark.offsets import Place


def as_text(numbers: range) -> str:
    """Segment numbers in words."""
    first, last = numbers[0], numbers[-1]
    return f"segment {first}" if first == last else f"segments {first} to {last}"


def of_deleted(place: Place, topic: str, subscriber: str, numbers: range) -> str:
    """Others have acknowledged, under the query's subscriber, what the query has not read."""
    return (
        f"{place} of topic {topic!r}: bundles of {as_text(numbers)} are deleted that this query has not read, as they were acknowledged "
        f"under the name of its subscriber {subscriber!r}: by another query or consumer of that name, or by a later state of the "
        "checkpoint that this one is a copy or a backup of. Each query needs a subscriber and a checkpoint of its own"
    )


def of_expired(place: Place, topic: str, subscriber: str, first: int | None, stands_at: int) -> str:
    """The subscriber was not there for a while.

    Args:
        first: number of the first segment that is stored; None: there is none.
        stands_at: number of the segment at which the query stands.
    """
    return (
        f"{place} of topic {topic!r}: the first segment is {first}, the query stands at segment {stands_at}, and its subscriber "
        f"{subscriber!r} was dropped meanwhile (subscriberTtl, or an operator): what lay between may be lost"
    )


def of_another_store(place: Place, topic: str, stands_at: int, found: str) -> str:
    """The offsets are of a directory that is gone. `found`: how that was noticed."""
    return (
        f"{place} of topic {topic!r}: the query stands at segment {stands_at}, {found}: the topic was deleted and created anew, or the "
        "node's data directory replaced by another one, and what the query had not read of the former is gone. To read this one, begin "
        "with a new checkpoint"
    )


def of_left(place: Place, topic: str, through: int, *, is_node_there: bool) -> str:
    """A node or a core has left with bundles of a micro-batch. `through`: number of the last segment of these."""
    gone = "its node does not have that core any more" if is_node_there else "its node is not announced any more"
    return f"{place} of topic {topic!r}: {gone}, and the micro-batch has bundles of it up to segment {through}"


def of_gap(place: Place, topic: str, gap: Gap) -> str:
    """A notice has come of a loss."""
    bundles = f"{gap.bundle_count} bundles" if gap.bundle_count else "all bundles"
    rows = f", {gap.row_count} rows" if gap.row_count >= 0 else ""
    return (
        f"{place} of topic {topic!r} lost {bundles}{rows} of segment {gap.segment_seq} from bundle "
        f"{gap.bundle_index_first}: {gap.reason}"
    )
