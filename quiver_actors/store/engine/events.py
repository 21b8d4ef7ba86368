"""The events of an engine for its worker: facts, each already true on disk where it says so."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Event:
    """Root of all events."""


@dataclass(frozen=True, slots=True)
class Durable(Event):
    """Every bundle below `sequence` is covered by a sync."""

    sequence: int


@dataclass(frozen=True, slots=True)
class Shown(Event):
    """The first `bundle_count` bundles of a segment that is not sealed are durable, and can be claimed."""

    segment_seq: int
    bundle_count: int


@dataclass(frozen=True, slots=True)
class Sealed(Event):
    """The segment is an immutable file and its bundles can be claimed."""

    segment_seq: int
    bundle_count: int


@dataclass(frozen=True, slots=True)
class Replaced(Event):
    """The segment has another file now, with the same bundles: it was compacted, or rescued."""

    segment_seq: int


@dataclass(frozen=True, slots=True)
class StagePrepared(Event):
    """The stage is durable: nothing but a decision ends it."""

    number: int


@dataclass(frozen=True, slots=True)
class StageDropped(Event):
    """Nothing of the stage will ever be visible."""

    number: int
    reason: str


@dataclass(frozen=True, slots=True)
class StagesPublished(Event):
    """All stages of that publish are sealed segments, and can be claimed behind those before them."""

    ticket: int


@dataclass(frozen=True, slots=True)
class Retired(Event):
    """The subscriber has resolved every bundle of the segment."""

    subscriber: str
    segment_seq: int


@dataclass(frozen=True, slots=True)
class LeftDisk(Event):
    """The segment leaves the disk, or bundles of it are lost there, and the subscriber gets from the archive what it has not resolved of
    the segment."""

    subscriber: str
    segment_seq: int


@dataclass(frozen=True, slots=True)
class ProgressDurable(Event):
    """Progress up to `ticket` is on disk."""

    ticket: int


@dataclass(frozen=True, slots=True)
class GapFound(Event):
    """Bundles that the subscriber will never get."""

    subscriber: str
    segment_seq: int
    bundle_index: int
    bundle_count: int
    reason: str


@dataclass(frozen=True, slots=True)
class Faulted(Event):
    """Segments cannot be looked at now, and are looked at again by and by; an empty reason: the fault has passed."""

    reason: str


@dataclass(frozen=True, slots=True)
class ColdOpened(Event):
    """The file of a cold segment that somebody wanted is open, or is gone: whoever waits for it can ask again."""

    segment_seq: int


@dataclass(frozen=True, slots=True)
class ColdDiskFaulted(Event):
    """The cold disk cannot be used now, and is tried by and by; an empty reason: the fault has passed."""

    reason: str


@dataclass(frozen=True, slots=True)
class Failed(Event):
    """The engine refuses work until its worker is restarted."""

    reason: str


@dataclass(frozen=True, slots=True)
class Resumed(Event):
    """Pushes that had to wait can be tried again."""


@dataclass(frozen=True, slots=True)
class Claimable(Event):
    """Bundles can be claimed again (deferred ones became due, claims were given back): sessions with credit can claim them."""

    subscriber: str
