"""The least cost of each client message for the loop of a worker: one row a message, beside the table of tags in `messages`.

A worker charges another user's request with the row's nanoseconds or with the time that it took, whichever is more. So a row is what the
request causes later and elsewhere: a file that is written and synced, a segment that is sealed or read through, pages that are allocated.
"""

from __future__ import annotations

from collections.abc import Mapping

from quiver_actors.base.model import ENTRY_BODY_BYTES_MAX
from quiver_actors.base.protocol import messages as m
from quiver_actors.base.protocol.base import Message
from quiver_actors.base.units import MICROSECOND_NS, MILLISECOND_NS

_ARENA_BYTES_PER_NS = 2
"""The kernel allocates the pages of an arena at about this rate."""

COSTS_NS: Mapping[type[Message], int] = {
    m.Hello: 20 * MICROSECOND_NS,
    m.ListTopics: 20 * MICROSECOND_NS,
    # Producers.
    m.AttachArena: MILLISECOND_NS,
    m.DeclareSchema: 20 * MICROSECOND_NS,
    m.Push: 5 * MICROSECOND_NS,
    m.KeyedPush: 5 * MICROSECOND_NS,
    m.Flush: 20 * MILLISECOND_NS,
    # Segments.
    m.ListSegments: 20 * MICROSECOND_NS,
    m.ListSchemas: 20 * MICROSECOND_NS,
    m.ListStatistics: 20 * MICROSECOND_NS,
    m.OpenSegment: 20 * MICROSECOND_NS,
    m.BundleTime: 20 * MICROSECOND_NS,
    # Subscribers. What changes progress causes a synced file.
    m.Register: 2 * MILLISECOND_NS,
    m.Unregister: 2 * MILLISECOND_NS,
    m.ShareSubscriber: 2 * MILLISECOND_NS,
    m.Seek: 2 * MILLISECOND_NS,
    m.Credit: 5 * MICROSECOND_NS,
    m.Taken: 5 * MICROSECOND_NS,
    m.Resolve: 5 * MICROSECOND_NS,
    m.FlushProgress: 200 * MICROSECOND_NS,
    m.Extend: 5 * MICROSECOND_NS,
    m.ClaimRef: 20 * MICROSECOND_NS,
    m.AckThrough: 200 * MICROSECOND_NS,
    m.GapAck: 200 * MICROSECOND_NS,
    m.Pending: 10 * MICROSECOND_NS,
    m.ListSubscribers: 20 * MICROSECOND_NS,
    m.Unreadable: 20 * MILLISECOND_NS,
    m.CheckSegment: 20 * MILLISECOND_NS,
    m.CountPruned: 20 * MICROSECOND_NS,
    # Transactions.
    m.BeginStage: 200 * MICROSECOND_NS,
    m.StagePush: 5 * MICROSECOND_NS,
    m.AbandonStage: 200 * MICROSECOND_NS,
    m.PrepareStage: 200 * MICROSECOND_NS,
    m.DropStages: 200 * MICROSECOND_NS,
    m.PublishStages: 200 * MICROSECOND_NS,
    m.ListStages: 20 * MICROSECOND_NS,
    m.Decide: 200 * MICROSECOND_NS,
}
UNDECODABLE_COST_NS = 20 * MICROSECOND_NS
"""A frame that is no message."""
CONNECTION_COST_NS = 50 * MICROSECOND_NS
"""A connection, from its accept to its end."""


def least_cost_ns(message: Message) -> int:
    """Return the least cost of the message, in nanoseconds."""
    cost_ns = COSTS_NS[type(message)]
    if isinstance(message, m.AttachArena):
        cost_ns += min(max(0, message.size_bytes), ENTRY_BODY_BYTES_MAX) // _ARENA_BYTES_PER_NS
    elif isinstance(message, m.Resolve) and message.durable:
        cost_ns = COSTS_NS[m.FlushProgress]
    return cost_ns
