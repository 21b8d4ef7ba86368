"""Another user who keeps the descriptors of all segments: deleted ones take room for a while only, and honest readers lose nothing."""

from __future__ import annotations

import mmap
import os

import pytest

from quiver_actors.base.protocol import messages as m
from quiver_actors.base.units import MILLISECOND_NS
from quiver_actors.store.engine import held_files
from tests.security.guest import AS_ROOT, besieged
from tests.unit.node.worker.harness import WireClient, table, until

TOPIC = "open"


def mapping_of(client: WireClient, segment_seq: int) -> mmap.mmap:
    """What a process keeps that has closed the descriptor."""
    client.send(m.OpenSegment(7, TOPIC, segment_seq))
    opened = client.expect(m.SegmentOpened)
    descriptor = client.descriptors.popleft()
    try:
        return mmap.mmap(descriptor, opened.size_bytes, prot=mmap.PROT_READ)
    finally:
        os.close(descriptor)


@AS_ROOT
def test_deleted_segments_that_another_user_keeps_are_emptied(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(held_files, "GRACE_NS", 0)
    monkeypatch.setattr(held_files, "LOOK_INTERVAL_NS", MILLISECOND_NS)
    with besieged() as node:
        node.honest.register("reader", topic=TOPIC, credit=10)
        for number in range(2):
            node.honest.push_and_wait(table(number), topic=TOPIC)
            node.honest.flush(TOPIC)
        kept = mapping_of(node.worker.connect(), 1)
        content = kept[:]
        hoard = [mapping_of(node.guest(), segment_seq) for segment_seq in (0, 1)]
        for deliver, index, _ in node.honest.values(2, "reader"):
            node.honest.resolve(deliver, [index])
        node.honest.segments.clear()  # it unmaps what is retired, as clients do
        node.honest.flush_progress("reader", TOPIC)
        until(lambda: hoard[0][:] == bytes(len(hoard[0])), "blocks that only another user holds to be taken back")
        assert kept[:] == hoard[1][:] == content, "what a reader of the own user maps is never emptied"
        kept.close()
        until(lambda: hoard[1][:] == bytes(len(hoard[1])), "the same once that reader has let go")
        for mapped in hoard:
            mapped.close()
