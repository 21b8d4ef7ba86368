"""Requests of remote clients (`flight.client`) to the Flight server of a node, and their answers, as they travel.

A push is a `DoPut` whose descriptor's command is `PushTerms`: the server answers `PushReady` before a byte of the bundles is sent, then
`PushDone`. A subscription is opened by the action `Subscribe`; its bundles are tickets of `DoGet` (`TakeTicket`), everything else that
is done with it is the action `Consume`. Bundles travel as `frames`. A dataset is opened by the action `OpenDataset`; its rows are tickets
of `DoGet` (`ScanTicket`).
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from quiver_actors.base.protocol.messages import SubscriberInfo, TopicInfo
from quiver_actors.client.subscribe_request import NotDelivered
from quiver_actors.flight.contract import SqlTicket, TableTicket

REMOTE_VERSION = 3
"""Version of this protocol. Client and server must have the same."""
PUSH_BUNDLES_MAX = 768
"""Most bundles of one `DoPut` of a remote client."""
PUSH_BYTES_MAX = (256 << 20) + (16 << 20)
"""Most bytes of one message of a `DoPut`: a bundle of the largest size, and what is around it."""
TIMEOUT_NS_MAX = 600 * 10**9
"""Longest time that one request may wait in the server."""
WAIT_NS_MAX = 10 * 10**9
"""Longest time that a `TakeTicket` waits for a bundle; the client asks again."""
TAKEN_BUNDLES_MAX = 4096
TAKEN_BYTES_MAX = 4 << 20
"""A `TakeTicket` is answered with no further bundle once it has so many bytes."""


class Greet(msgspec.Struct, frozen=True, tag=True):
    """First request of a remote client: which version the node speaks, and which topics there are for the token."""

    version: int


class Greeting(msgspec.Struct, frozen=True):
    """Answer to `Greet`."""

    version: int
    node: str
    topics: list[TopicInfo]


class PushTerms(msgspec.Struct, frozen=True):
    """What the bundles of one `DoPut` are pushed as; see `Client.push`."""

    version: int
    topic: str
    timeout_ns: int
    key: bytes | None = None
    producer: str | None = None
    sequence: int | None = None


class PushReady(msgspec.Struct, frozen=True):
    """First answer to a push: it may be made. Nothing is stored before this is sent."""

    topic: TopicInfo


class StoredRun(msgspec.Struct, frozen=True, array_like=True):
    """Consecutive bundles of one segment, as their receipts name them."""

    core: int
    segment_seq: int
    bundle_index: int
    sequence: int
    count: int
    durability: int
    is_duplicate: bool


class PushDone(msgspec.Struct, frozen=True):
    """Second answer to a push: every bundle is stored."""

    runs: list[StoredRun]


class Subscribe(msgspec.Struct, frozen=True, tag=True):
    """Attach a remote consumer to a durable subscriber; answered with the id under which the consumer is known."""

    version: int
    topic: str
    subscriber: str
    options: dict[str, Any]
    """Options of `Client.subscribe`, without functions; a start is a word, UNIX nanoseconds, or the parts of a BundleId."""


class Subscribed(msgspec.Struct, frozen=True):
    """Answer to `Subscribe`."""

    subscription: str
    topic: TopicInfo
    idle_seconds: float
    """The consumer is ended, and what it holds goes back, when nothing is heard of it for so long."""
    not_delivered: list[NotDelivered] = []
    """What a new subscriber does not get."""


class Outcome(msgspec.Struct, frozen=True, array_like=True):
    """What becomes of one delivery: `ack`, `reject` or `defer`."""

    number: int
    outcome: Literal["ack", "reject", "defer"]
    delay_ns: int = 0


class Resolve(msgspec.Struct, frozen=True, tag=True):
    """Pass these outcomes on, in their order. Those that were passed on before change nothing.

    An empty list says that the client is alive.
    """

    outcomes: list[Outcome]


class Settle(msgspec.Struct, frozen=True, tag=True):
    """Wait until the outcomes of deliveries are durable; raises why the first of those does not count that do not."""

    numbers: list[int]
    timeout_ns: int


class Flush(msgspec.Struct, frozen=True, tag=True):
    """Wait until all outcomes are durable; answered with `Refusals`."""

    timeout_ns: int


class ExtendLeases(msgspec.Struct, frozen=True, tag=True):
    """Begin the leases of deliveries anew; answered with `Extended`."""

    numbers: list[int]
    timeout_ns: int


class AskStanding(msgspec.Struct, frozen=True, tag=True):
    """Ask how the subscriber stands; answered with `Standing`."""

    timeout_ns: int


class AskRange(msgspec.Struct, frozen=True, tag=True):
    """Ask how many bundles of a core are not resolved, from one (segment, bundle) up to and not including another.

    Answered with `Count`.
    """

    core: int
    start: tuple[int, int]
    end: tuple[int, int]
    timeout_ns: int


class AckThrough(msgspec.Struct, frozen=True, tag=True):
    """Resolve everything of a core up to and including a bundle."""

    core: int
    segment_seq: int
    bundle_index: int
    timeout_ns: int


class EndSubscription(msgspec.Struct, frozen=True, tag=True):
    """End the consumer: what it holds goes back."""


Act = Resolve | Settle | Flush | ExtendLeases | AskStanding | AskRange | AckThrough | EndSubscription


class Consume(msgspec.Struct, frozen=True, tag=True):
    """Do something with an open subscription of the same token."""

    subscription: str
    act: Act
    taken: int = 0
    """Number of the last answer to a `TakeTicket` that the caller was handed whole: its gap notices are confirmed."""


class Refusal(msgspec.Struct, frozen=True, array_like=True):
    """A resolution that did not count, and the code of the reason."""

    core: int
    segment_seq: int
    bundle_index: int
    token: int
    code: str
    message: str


class Resolved(msgspec.Struct, frozen=True):
    """Answer to `Resolve`."""

    refused_count: int
    """Resolutions of the subscription that workers have refused so far."""


class Refusals(msgspec.Struct, frozen=True):
    """Answer to `Flush`."""

    refusals: list[Refusal]


class Extended(msgspec.Struct, frozen=True):
    """Answer to `ExtendLeases`: the nanoseconds that are left of each lease, by number; those that are not held any more are not named."""

    left_ns: dict[int, int]


class Standing(msgspec.Struct, frozen=True):
    """Answer to `AskStanding`."""

    pending_count: int
    is_drained: bool
    oldest: dict[int, tuple[int, int]]
    """(segment, bundle) of the oldest bundle that is not resolved, by core."""


class Count(msgspec.Struct, frozen=True):
    """Answer to `AskRange`."""

    count: int


class Bounds(msgspec.Struct, frozen=True):
    """Where a dataset begins and ends, as `query.span.Span` has it."""

    start_ns: int | None = None
    end_ns: int | None = None
    starts: dict[int, tuple[int, int]] = {}
    ends: dict[int, tuple[int, int]] = {}


class OpenDataset(msgspec.Struct, frozen=True, tag=True):
    """Take a snapshot of a slot, to be scanned by `ScanTicket`; answered with `OpenedDataset`. Arguments as of `Client.dataset`."""

    version: int
    topic: str
    slot: str | int | None
    bounds: Bounds
    where: str | None
    """Conditions in words; expressions travel with each scan."""
    event_start_ns: int | None
    event_end_ns: int | None
    metadata: bool | list[str]
    skip_damaged: bool


class OpenedDataset(msgspec.Struct, frozen=True):
    """Answer to `OpenDataset`. Schemas are Arrow IPC messages."""

    dataset: str
    """The id by which it is scanned and closed."""
    slot_id: int
    schema: bytes
    full_schema: bytes
    """All columns that a scan can name, those that tell where a row is stored included."""
    is_complete: bool
    segment_count: int


class CloseDatasets(msgspec.Struct, frozen=True, tag=True):
    """Forget datasets of the same token. Those that are not open any more change nothing."""

    datasets: list[str]


class AskSubscribers(msgspec.Struct, frozen=True, tag=True):
    """Ask for the durable subscribers of a topic; answered with `Subscribers`."""

    topic: str


class Subscribers(msgspec.Struct, frozen=True):
    """Answer to `AskSubscribers`."""

    by_core: dict[int, list[SubscriberInfo]]


class AskStatus(msgspec.Struct, frozen=True, tag=True):
    """Ask how the node is; answered with `Status`."""


class Status(msgspec.Struct, frozen=True):
    """Answer to `AskStatus`: the document of `quiver status --json`, as far as the token's topics go."""

    document: dict[str, Any]


class ScanTicket(msgspec.Struct, frozen=True, tag="scan", tag_field="kind"):
    """Rows of an open dataset of the same token."""

    dataset: str
    columns: list[str]
    where: bytes | None = None
    """A Substrait message: rows for which this is not true are left out. It is bound to the full schema."""


class BundlesTicket(msgspec.Struct, frozen=True, tag="bundles", tag_field="kind"):
    """Stored bundles of one core in order, as `Client.read` has them."""

    topic: str
    core: int
    start: tuple[int, int] | None = None
    end: tuple[int, int] | None = None
    slots: list[str | int] | None = None
    columns: list[tuple[str | int, list[str]]] = []


class TakeTicket(msgspec.Struct, frozen=True, tag="take", tag_field="kind"):
    """The next bundles of an open subscription. The same number again gets the same answer again, should that have been lost."""

    subscription: str
    number: int
    """One more than that of the last answer, which is by that known to have arrived."""
    bundles_max: int
    wait_ns: int


class ClaimTicket(msgspec.Struct, frozen=True, tag="claim", tag_field="kind"):
    """One bundle of an open subscription, by its id."""

    subscription: str
    core: int
    segment_seq: int
    bundle_index: int
    timeout_ns: int


RemoteTicket = TableTicket | SqlTicket | ScanTicket | BundlesTicket | TakeTicket | ClaimTicket


class PushedFacts(msgspec.Struct, frozen=True, array_like=True):
    """What travels beside the batches of a pushed bundle."""

    item_count: int | None = None


class StoredFacts(msgspec.Struct, frozen=True, array_like=True):
    """What travels beside the batches of a stored bundle."""

    core: int
    segment_seq: int
    bundle_index: int
    item_count: int | None
    ingestion_unix_ns: int | None
    incarnation: bytes | None
    trace: dict[str, str]


class DeliveredFacts(msgspec.Struct, frozen=True, tag="bundle"):
    """What travels beside the batches of a delivered bundle."""

    stored: StoredFacts
    number: int
    """Number of the delivery in its subscription."""
    delivery_count: int
    token: int
    lease_left_ns: int
    """0: it has no lease."""


class NoticeFacts(msgspec.Struct, frozen=True, tag="gap"):
    """A gap notice among deliveries; it has no batches."""

    core: int
    segment_seq: int
    bundle_index_first: int
    bundle_index_last: int
    bundle_count: int | None
    row_count: int | None
    reason: str
