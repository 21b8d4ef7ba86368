"""The messages of subscribers: what they want, what they are given, and what becomes of it. See docs/delivery.md.

Claims are named by the fencing token of their `Deliver`, bundles by their segment and index; the core is the worker's own.
"""

from __future__ import annotations

import msgspec

from quiver_actors.base.protocol.archived_start import ArchivedStart
from quiver_actors.base.protocol.base import Message
from quiver_actors.base.protocol.terms import Terms

HEARS_TAKEN = 1 << 1
"""Bit of `Welcome.features`: the worker understands `Taken`."""

# --- client to worker --------------------------------------------------------------------------------------------------


class Register(Message, tag=8, frozen=True):
    """Attach this connection to a durable subscriber, creating it if needed; answered by Done once it is durable."""

    tag: int
    topic: str
    subscriber: str
    start: str
    """Start of a new subscriber, ignored for a known one: `latest`, `earliest`, `time:<unix ns>` (bundles ingested at or after it) or
    `bundle:<core>/<segment_seq>/<bundle_index>` (that bundle is the first of its core; another core takes it for `earliest`)."""
    terms: Terms = Terms()
    incarnation: str = ""
    """Incarnation of the topic that the consumer was attached to before; any other is refused (`topic_recreated`). Empty: none."""
    tells_taken: bool = False
    """Whether this connection sends `Taken` while the terms have `max_deliveries`; if not, all that it is sent counts as delivered."""
    archived: ArchivedStart | None = None
    """What a new subscriber gets from the archive before what is on the disk; None: nothing. Ignored for a known one."""
    reads_archive: bool = False
    """Whether the consumer reads archived segments by itself. If not, it may not attach while its subscriber is owed some (`usage`)."""


class Unregister(Message, tag=9, frozen=True):
    """Delete the subscriber and its progress; answered by Done once durable, whose `value` is the number of bundles dropped."""

    tag: int
    topic: str
    subscriber: str
    only_orphan: bool = False
    """Refuse (`usage`) while any connection is attached to it."""


class Credit(Message, tag=10, frozen=True):
    """This connection may be given `total` bundles in all, counted from its Register, claims by reference not included.

    Absolute, so that sending it again changes nothing; it also makes the worker look for something to deliver. A lower number
    takes back what is unused.
    """

    topic: str
    subscriber: str
    total: int


class Resolve(Message, tag=11, frozen=True):
    """Finish claims of one Deliver. Applied in order and as far as possible; answered by NotResolved if some claim is not held (any
    more), and with `durable` by Done once everything else of it is on disk. The same again is no error.

    `outcome`: `ack`, `reject` (never again, counted), `defer` (again after `delay_ns`), `return` (again at once, and this delivery
    does not count: it was never looked at).
    """

    tag: int
    topic: str
    subscriber: str
    segment_seq: int
    token: int
    """Fencing token of the Deliver that claimed the bundles."""
    outcome: str
    bundle_indexes: bytes
    """u32 array."""
    delay_ns: int = 0
    durable: bool = False


class FlushProgress(Message, tag=12, frozen=True):
    """Answered by Done when every ack sent before it is durable."""

    tag: int
    topic: str
    subscriber: str


class Extend(Message, tag=13, frozen=True):
    """Let claims live for another `lease_ns` from now; answered by Extended."""

    tag: int
    topic: str
    subscriber: str
    tokens: bytes
    """u64 array."""


class ClaimRef(Message, tag=14, frozen=True):
    """Claim one bundle by its id, also a deferred or blocked one, outside credit and window; answered by a Deliver with this `tag`,
    or refused: `already_resolved`, or `not_claimed` (somebody holds it, or it is not sealed yet)."""

    tag: int
    topic: str
    subscriber: str
    segment_seq: int
    bundle_index: int


class AckThrough(Message, tag=15, frozen=True):
    """Resolve everything of this core up to and including that bundle, claimed or not; answered by Done once durable.

    Refused (`usage`) if no such bundle was appended yet. The same or less again is no error.
    """

    tag: int
    topic: str
    subscriber: str
    segment_seq: int
    bundle_index: int


class GapAck(Message, tag=16, frozen=True):
    """The consumer has been handed that notice; answered by Done once durable: it is not sent again to anybody of this subscriber."""

    tag: int
    topic: str
    subscriber: str
    notice: int


class Pending(Message, tag=17, frozen=True):
    """Ask what a subscriber is still owed on this core, or in a range of it; answered by PendingInfo."""

    tag: int
    topic: str
    subscriber: str
    from_segment_seq: int = 0
    from_bundle_index: int = 0
    to_segment_seq: int = -1
    """Exclusive end of the range together with `to_bundle_index`; -1 = no end."""
    to_bundle_index: int = 0


class ListSubscribers(Message, tag=18, frozen=True):
    """Answered by SubscriberList."""

    tag: int
    topic: str


class Unreadable(Message, tag=19, frozen=True):
    """The consumer could not read these bundles of a segment that it was given. Their claims return; the worker checks the file, and
    if it is damaged it goes to quarantine and every subscriber gets a Gap; otherwise they are delivered again after a second."""

    tag: int
    topic: str
    subscriber: str
    segment_seq: int
    token: int
    bundle_indexes: bytes
    """u32 array."""
    reason: str
    lost: str = ""
    """Why the archive has these bundles no more, as of `Gap.reason`: they are announced at once. Believed of archived bundles alone."""


class Seek(Message, tag=22, frozen=True):
    """Move a subscriber to another position, as if it was new and started there; answered by Sought once durable. What it skips is
    dropped and announced by a Gap; claims of it that anybody holds end."""

    tag: int
    topic: str
    subscriber: str
    start: str
    """Where the subscriber continues; same form as `Register.start`."""
    is_dry: bool = False
    """Whether the worker only reports what it would do."""


class Taken(Message, tag=25, frozen=True):
    """These bundles of one Deliver were handed over to the consumer's caller. Sent before that, while the terms have `max_deliveries`:
    only such bundles count as delivered when their lease or their connection ends. Has no answer; what is not held is passed over."""

    topic: str
    subscriber: str
    segment_seq: int
    token: int
    bundle_indexes: bytes
    """u32 array."""


class ShareSubscriber(Message, tag=23, frozen=True):
    """Let these users join a subscriber, and nobody else that its owner has named before; answered by Done once durable."""

    tag: int
    topic: str
    subscriber: str
    uids: list[int]


# --- worker to client --------------------------------------------------------------------------------------------------


class Deliver(Message, tag=71, frozen=True):
    """Bundles of one segment, now claimed by this connection, in the order of its terms."""

    topic: str
    subscriber: str
    segment_seq: int
    bundle_indexes: bytes
    """u32 array."""
    token: int
    """Fencing token: what Resolve and Extend name. Rises with every claim; several Delivers may share one."""
    delivery_counts: bytes
    """u16 array beside `bundle_indexes`: how often each was delivered since the worker started, this time included."""
    lease_until_ns: int = 0
    """CLOCK_MONOTONIC of this machine; 0 = no lease."""
    tag: int = 0
    """Tag of the ClaimRef that this message answers; 0: the bundles were claimed through credit."""
    places: bytes = b""
    """A `base.protocol.places.PLACE` for each bundle if the segment is not sealed; empty if it is."""


class GroupTerms(Message, tag=79, frozen=True):
    """The terms that hold for all consumers of the subscriber from now on; sent to each of them when another one has set them, and to one
    that joins and may set none. Its `order`, `backfill_ratio` and window are nothing to the others."""

    topic: str
    subscriber: str
    terms: Terms
    lease_until_ns: int
    """CLOCK_MONOTONIC: when the leases of all that this connection holds end now; 0 = never, -1 = as before."""


class Withdrawn(Message, tag=80, frozen=True):
    """What this connection held under a token it holds no more: the lease is over, or the bundles were resolved by somebody else, moved
    past, or lost. Bundles of the range that it had resolved itself, or did not hold, are not meant."""

    topic: str
    subscriber: str
    segment_seq: int
    token: int
    first: int
    stop: int
    """Exclusive."""


class SegmentRetired(Message, tag=72, frozen=True):
    """This subscriber has resolved the whole segment: its mapping can go once no delivered batch points into it."""

    topic: str
    subscriber: str
    segment_seq: int


class Gap(Message, tag=73, frozen=True):
    """Consecutive bundles that this subscriber will never get, sent where they would have come, to one connection of the subscriber.
    Sent again, perhaps to another one, until a GapAck is durable."""

    topic: str
    subscriber: str
    notice: int
    """Names it in GapAck; unique per subscriber and core."""
    segment_seq: int
    bundle_index_first: int
    bundle_index_last: int
    bundle_count: int
    """0: nobody knows how many; the whole segment is gone."""
    row_count: int
    """Rows of all slots; -1 where nobody knows."""
    reason: str
    """`damaged`, `evicted`, `expired` or `dropped`."""
    lease_until_ns: int = 0
    """Monotonic time from which it may be sent to another connection; 0: only when this one is lost."""


class Refusal(msgspec.Struct, array_like=True, frozen=True):
    """Bundles of one `Resolve` that the worker refused for one reason."""

    code: str
    """`lease_expired`, `fenced`, `already_resolved` or `not_claimed`."""
    bundle_indexes: bytes
    """u32 array."""


class NotResolved(Message, tag=74, frozen=True):
    """Some bundles of a Resolve or Unreadable were not held under that token; the others are done."""

    tag: int
    topic: str
    subscriber: str
    segment_seq: int
    token: int
    refusals: list[Refusal]


class Extended(Message, tag=75, frozen=True):
    """Answer to `Extend`."""

    tag: int
    lease_until_ns: int
    """CLOCK_MONOTONIC; 0 = no lease."""
    ended: bytes
    """u64 array of the tokens that hold nothing any more: resolved, or their lease ran out."""


class PendingInfo(Message, tag=76, frozen=True):
    """Counts of sealed bundles by state, then of bundles that are not sealed yet. A range limits only `in_range`."""

    tag: int
    pending: int
    claimed: int
    deferred: int
    blocked: int
    """Exhausted ones: waiting for their dead letter, or kept by `block`."""
    unsealed: int
    gaps: int
    """Notices that no consumer has acknowledged."""
    oldest_segment_seq: int
    """Segment number of the oldest unresolved sealed bundle; -1: there is none."""
    oldest_bundle_index: int
    in_range: int
    """Unresolved bundles in the range, sealed or not."""
    drained: bool
    """Whether the subscriber is owed nothing: no unresolved bundle, sealed or not, and no gap notice."""
    is_leaving: bool = False
    """The worker takes no more pushes: its node is being drained, or the core was adopted."""


class GapRange(msgspec.Struct, array_like=True, frozen=True):
    """What one gap notice is about: consecutive bundles of a segment that the subscriber will never get."""

    segment_seq: int
    bundle_index_first: int
    bundle_count: int
    """0: nobody knows how many; the whole segment is gone."""
    row_count: int
    """Rows of all slots; -1 where nobody knows."""
    reason: str


class SubscriberInfo(msgspec.Struct, array_like=True, frozen=True):
    """One durable subscriber on this core: its connections, its bundles by state, and its progress. Counts are of bundles."""

    subscriber: str
    connections: int
    detached_since_unix_ns: int
    """0 while a connection is attached; counted from the worker's start at the earliest."""
    pending: int
    claimed: int
    deferred: int
    blocked: int
    unsealed: int
    gaps: int
    delivered: int
    redelivered: int
    acked: int
    rejected: int
    dead_lettered: int
    oldest_segment_seq: int
    """-1 if nothing sealed is owed."""
    oldest_bundle_index: int
    oldest_unix_ns: int
    gap_ranges: tuple[GapRange, ...] = ()
    """The first of the `gaps` notices; fewer than `gaps` where these are many, or where the worker is older than the field."""


class SubscriberList(Message, tag=77, frozen=True):
    """Answer to `ListSubscribers`."""

    tag: int
    subscribers: list[SubscriberInfo]


class Sought(Message, tag=78, frozen=True):
    """Answer to `Seek`."""

    tag: int
    skipped: int
    """Bundles that it was owed and does not get."""
    again: int
    """Bundles that were resolved and are owed again."""
