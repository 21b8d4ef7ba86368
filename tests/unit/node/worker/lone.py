"""Pushes that travel alone, as a client lays them out and sends them."""

from __future__ import annotations

from quiver_actors.base.protocol import messages as m
from quiver_actors.base.protocol.lone import KIND_PUSH, LONE_MARK, LONE_PUSH, LONE_PUSH_LENGTH
from tests.unit.node.worker.harness import WireClient, table
from tests.unit.node.worker.spans import Span


def lone_push(client: WireClient, value: int, *, handle: int = 0, crc_flip: int = 0) -> tuple[int, bytes]:
    """Put a bundle of `table` into the arena; the tag and the struct of its push."""
    span = Span()
    span.add([(handle, 0, table(value))])
    push = client.place(span)
    _, crc, _, items, _, _, rows = m.ENTRY_ROW.unpack(push.entries)
    _, _, payload, _, schema_bytes, metadata, body, _ = m.SLOT_ROW.unpack(push.slots)
    padding = payload - schema_bytes - metadata - body - 8
    start = LONE_PUSH_LENGTH, LONE_MARK, KIND_PUSH, padding, crc ^ crc_flip, push.tag
    place = push.offset, push.end_position, push.length
    return push.tag, LONE_PUSH.pack(*start, *place, handle, rows, metadata, 0, items)
