"""How long a read waits for what was just acknowledged."""

from __future__ import annotations

import time

import pytest

from quiver_actors.base.protocol.messages import TopicInfo
from quiver_actors.base.units import MILLISECOND_NS, SECOND_NS
from quiver_actors.client.exchange import Flow
from quiver_actors.client.requests import waiting_for_all
from quiver_actors.client.slots import TopicSlots


def nothing_yet() -> Flow[bool]:
    """A look that finds that something acknowledged cannot be read."""
    return False
    yield 0


@pytest.mark.parametrize(
    ("durability", "flush_interval_ns", "waits"),
    [("wal", 0, True), ("wal", 25 * MILLISECOND_NS, True), ("wal", SECOND_NS, False), ("segment_only", 0, False)],
)
def test_a_read_waits_only_for_what_is_about_to_be_synced(
    durability: str, flush_interval_ns: int, *, waits: bool
) -> None:
    slots = TopicSlots(TopicInfo("travel", {}, durability, flush_interval_ns))
    flow, began_ns = waiting_for_all(nothing_yet, bool, slots.unsynced_ns), time.monotonic_ns()
    again_at_ns = next(flow, None)
    assert (again_at_ns is not None) == waits
    assert again_at_ns is None or again_at_ns > began_ns
