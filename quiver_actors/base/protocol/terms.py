"""The terms under which a consumer takes bundles; a part of `subscriber_messages.Register`."""

from __future__ import annotations

import msgspec


class Terms(msgspec.Struct, array_like=True, frozen=True):
    """How a subscriber wants its bundles. `order`, `backfill_ratio` and the in-flight window hold for the connection that registers;
    of the others the newest Register of the subscriber wins. Memory of the worker: a restart waits for the next Register."""

    lease_ns: int = 30_000_000_000
    """How long a claim lives without Extend; 0 = as long as its connection."""
    order: str = "oldest"
    """`oldest`, `newest` or `newest_backfill`."""
    backfill_ratio: int = 2
    """How many of every 10 bundles claimed under `newest_backfill` are the oldest ones; 0..10."""
    max_in_flight_bundles: int = 0
    """Most bundles claimed by this connection at a time; 0 = only credit limits."""
    max_in_flight_bytes: int = 0
    """Upper limit for unresolved bytes on this connection; one bundle is always allowed. 0: no limit."""
    max_deliveries: int = 0
    """Deliveries after which a bundle that comes back is exhausted; 0: never."""
    exhausted: str = "dead_letter"
    """Fate of an exhausted bundle: `dead_letter`, `drop` (rejected) or `block` (kept, delivered by ClaimRef only)."""
    dead_letter_topic: str = ""
    """Empty: `<topic>-dead`, which is created when it does not exist. Any other must be configured."""
    orphan_ttl_ns: int = 0
    """Time without an attached connection after which the subscriber is dropped; 0: the topic's `orphan_ttl` decides."""
