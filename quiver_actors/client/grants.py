"""The grants of a worker to one connection: claims under fencing tokens, and the bundles of each Deliver that wait to be taken."""

from __future__ import annotations

from abc import ABC, abstractmethod
from array import array
from collections.abc import Iterable, Sequence
from typing import NamedTuple, Protocol, TypeAlias

from quiver_actors.base.model import BundleId
from quiver_actors.base.protocol.messages import Deliver, Message
from quiver_actors.client.calls import Call
from quiver_actors.client.channel import Channel
from quiver_actors.client.refused import Refusals
from quiver_actors.client.segments import MappedSegment


class HandedReports(Protocol):
    """The messages that tell a worker what the caller was handed. `handed_over` implements it."""

    @property
    def is_told(self) -> bool:
        """Whether the worker is told."""

    def message(self, grant: Grant, bundle_indexes: Sequence[int]) -> Message:
        """Return the message that the caller is about to be handed bundles of a grant."""


class ClaimChannel(Channel, ABC):
    """The connection by which claims come and by which their resolutions leave. `subscriber_channel` implements it."""

    refusals: Refusals
    handed: HandedReports
    durable_counts: dict[int, int]
    """Up to which number of the consumer resolutions are known to be durable, or refused, by the generation of their connection."""

    @abstractmethod
    def take(self, bundles: int = 1) -> None:
        """Note that bundles left the inbox, so that the worker is given credit for as many again. Below zero: so many came back."""

    @abstractmethod
    def resolve(self, parcel: Parcel, bundle_indexes: Sequence[int], outcome: str, delay_ns: int = 0) -> None:
        """Queue one outcome for bundles of a parcel; `bundle_indexes` are indexes in the parcel's segment."""

    @abstractmethod
    def resolve_late(self, parcel: Parcel, bundle_indexes: Sequence[int], outcome: str) -> None:
        """Note the outcome of bundles whose connection was lost before the worker could be told."""

    @abstractmethod
    def give_back(self, parcel: Parcel) -> None:
        """Return the bundles of a parcel that nobody has looked at; this counts as no delivery."""

    @abstractmethod
    def report_unreadable(self, parcel: Parcel, bundle_index: int, reason: str, lost: str = "") -> None:
        """Tell the worker that a bundle of a parcel cannot be read, with the reason."""

    @abstractmethod
    def ask(self, grant: Grant, now_ns: int) -> None:
        """Ask the worker whether it still holds the claims of a grant whose lease seems over here."""

    @abstractmethod
    def extension(self, grants: Iterable[Grant], now_ns: int) -> Call:
        """Return a call, not yet sent, that begins the leases of these grants again."""


class Grant:
    """The claims under one fencing token of one connection."""

    __slots__ = (
        "asked_at_ns",
        "delivered",
        "finished",
        "is_asked",
        "lease_until_ns",
        "segment_seq",
        "token",
        "unresolved",
        "waiting",
        "withdrawn",
    )

    def __init__(self, token: int, lease_until_ns: int, now_ns: int, segment_seq: int = 0) -> None:
        self.token = token
        self.segment_seq = segment_seq
        """All its bundles are of one segment."""
        self.lease_until_ns = lease_until_ns
        """Monotonic; 0 = no lease."""
        self.asked_at_ns = now_ns
        """Monotonic time when the lease was last granted or asked to be extended."""
        self.waiting = 0
        """Bundles that nobody has taken yet."""
        self.unresolved = 0
        """Bundles that are held, waiting ones included."""
        self.delivered = array("I")
        """Indexes of all its bundles."""
        self.finished = array("I")
        """Indexes of those that this side has resolved."""
        self.withdrawn: set[int] = set()
        """Indexes of those that the worker has ended before."""
        self.is_asked = False
        """Whether the worker is being asked if it is held: its lease is over by the clock, and the worker has the last word."""

    def withdraw(self, first: int, stop: int) -> set[int]:
        """Drop the claims on bundles `first` to `stop`, which the worker has ended. Returns the indexes that were held."""
        gone = {index for index in self.delivered if first <= index < stop}.difference(self.finished, self.withdrawn)
        self.withdrawn |= gone
        self.unresolved -= len(gone)
        return gone

    def is_over(self, now_ns: int) -> bool:
        """Whether others may have its bundles."""
        return 0 < self.lease_until_ns <= now_ns


class Parcel:
    """The bundles of one Deliver. Those before `position` have been taken."""

    __slots__ = ("channel", "counts", "generation", "grant", "indexes", "laid_out", "position", "segment")

    def __init__(self, channel: ClaimChannel, grant: Grant, segment: MappedSegment, message: Deliver) -> None:
        self.channel = channel
        self.generation = channel.generation
        """Generation of the channel when the claims were granted; another one now means that the claims are gone."""
        self.grant = grant
        self.segment = segment
        self.indexes = array("I", message.bundle_indexes)
        self.counts = array("H", message.delivery_counts)
        self.position = 0
        self.laid_out = 0
        """Number of leading indexes whose deliveries were made; the inbox's own note."""
        grant.delivered.extend(self.indexes)
        grant.waiting += len(self.indexes)
        grant.unresolved += len(self.indexes)

    @property
    def is_current(self) -> bool:
        """Whether the connection that its claims belong to still stands."""
        return self.generation == self.channel.generation

    @property
    def waiting(self) -> int:
        """Bundles that were not taken."""
        return len(self.indexes) - self.position

    def is_held(self, now_ns: int) -> bool:
        """Whether its claims can still be this consumer's; the worker has the last word."""
        return self.generation == self.channel.generation and not 0 < self.grant.lease_until_ns <= now_ns

    def drop(self, gone: set[int]) -> int:
        """Drop waiting bundles of the parcel, none of which may be laid out. Returns how many of them waited."""
        first = self.position
        kept = [number for number in range(first, len(self.indexes)) if self.indexes[number] not in gone]
        dropped = len(self.indexes) - first - len(kept)
        self.indexes[first:] = array("I", [self.indexes[number] for number in kept])
        self.counts[first:] = array("H", [self.counts[number] for number in kept])
        self.grant.waiting -= dropped
        return dropped

    def again(self, portion: Portion) -> Parcel:
        """Return bundles of it that were taken as a parcel of its own, of which none was. Those whose claim has ended are left out."""
        parcel: Parcel = object.__new__(Parcel)
        parcel.channel, parcel.generation, parcel.grant, parcel.segment = (
            self.channel,
            self.generation,
            self.grant,
            self.segment,
        )
        parcel.indexes, parcel.counts = portion.indexes[:], portion.counts[:]
        parcel.position = parcel.laid_out = 0
        self.grant.waiting += len(parcel.indexes)
        parcel.drop(self.grant.withdrawn.union(self.grant.finished))
        return parcel

    def take(self, bundles: int) -> None:
        """The next ones were taken."""
        self.position += bundles
        self.laid_out = max(self.laid_out, self.position)
        self.grant.waiting -= bundles


Bundles: TypeAlias = tuple[Parcel, Sequence[int]]
"""Some bundles of a parcel, by their indexes."""


class Portion(NamedTuple):
    """Bundles of one parcel that were taken together."""

    parcel: Parcel
    indexes: array[int]
    counts: array[int]
    """How often each was delivered."""

    def part(self, first: int, stop: int) -> Portion:
        """Return bundles `first` to `stop` of it."""
        return Portion(self.parcel, self.indexes[first:stop], self.counts[first:stop])

    def bundle_id(self, number: int) -> BundleId:
        """Return the id of one of its bundles."""
        segment = self.parcel.segment
        return BundleId(segment.slots.topic, segment.core, segment.segment_seq, self.indexes[number])


class Claim(NamedTuple):
    """One bundle that was claimed for this consumer, and the number of its resolution; 0: it has none."""

    parcel: Parcel
    bundle_index: int
    resolution_number: int

    def __str__(self) -> str:
        segment = self.parcel.segment
        return f"<{segment.slots.topic} core={segment.core} segment={segment.segment_seq} bundle={self.bundle_index}>"

    @property
    def is_answered(self) -> bool:
        """Whether the worker has made the resolution durable, or refused it."""
        parcel = self.parcel
        return 0 < self.resolution_number <= parcel.channel.durable_counts.get(parcel.generation, 0)

    @property
    def refusal_code(self) -> str | None:
        """Why the worker refused the resolution; None: it did not."""
        parcel = self.parcel
        return parcel.channel.refusals.code_of(parcel.segment.segment_seq, parcel.grant.token, self.bundle_index)

    def is_held(self, now_ns: int) -> bool:
        """Return whether the worker has not ended the claim, as far as is known here, and its lease is not over."""
        return self.parcel.is_held(now_ns) and self.bundle_index not in self.parcel.grant.withdrawn
