"""Compaction, rescue and scrub in a running worker, as clients see them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from quiver_actors.base.metrics.figures import EngineFigure, RowKind
from quiver_actors.base.protocol import messages as m
from quiver_actors.base.units import MILLISECOND_NS
from quiver_actors.store.jobs import upkeep
from quiver_actors.store.segment.reader import SegmentReader
from tests.unit.node.worker.harness import WireClient, WorkerThread, running, table, until

COUNT = 400


def figure(worker: WorkerThread, which: EngineFigure) -> int:
    return next((row.values[which] for row in worker.region().rows if row.kind == RowKind.ENGINE), 0)


def small_bundles(worker: WorkerThread) -> None:
    producer = worker.producer()
    producer.push_and_wait(*(table(value) for value in range(COUNT)))
    producer.flush()


def values(client: WireClient, count: int) -> list[int]:
    return [found[0] for _, _, found in client.values(count)]


def test_a_consumer_in_the_middle_of_a_segment_gets_the_compacted_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(upkeep, "COMPACTION_AGE_NS", 20 * MILLISECOND_NS)
    with running(tmp_path) as worker:
        client = worker.connect()
        client.register("s", start="latest", credit=COUNT // 2)
        small_bundles(worker)
        first = client.expect(m.SegmentOpened)
        assert not first.is_sealed, "bundles are delivered before the seal"
        with open(os.dup(client.descriptors[0]), "rb") as file:
            before = SegmentReader(file.read(), segment_seq=0)  # the log has become the segment
        held = client.open_received(first)
        assert values(client, COUNT // 2) == list(range(COUNT // 2))
        until(lambda: figure(worker, EngineFigure.COMPACTIONS) == 1, "the compaction")
        opened = client.expect(m.SegmentOpened)
        assert opened.segment_seq == 0
        after = client.open_received(opened)
        assert opened.is_sealed
        assert opened.size_bytes < before.footer.directory_offset
        client.send(m.Credit("default", "s", COUNT))
        assert values(client, COUNT - COUNT // 2) == list(range(COUNT // 2, COUNT))
        assert [held.bundle(n)[0].equals(after.bundle(n)[0]) for n in range(COUNT // 2)] == [True] * (COUNT // 2)
        assert [before.bundle(n)[0].equals(after.bundle(n)[0]) for n in range(COUNT)] == [True] * COUNT
        saved = figure(worker, EngineFigure.COMPACTED_BYTES_SAVED)
        assert saved == before.footer.manifest_offset + before.footer.manifest_length + 124 - opened.size_bytes


def test_a_consumer_is_told_of_damage_that_the_scrub_finds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upkeep, "COMPACTION_AGE_NS", 1 << 60)
    monkeypatch.setattr(upkeep, "SCRUB_AGE_NS", 20 * MILLISECOND_NS)
    with running(tmp_path) as worker:
        client = worker.connect()
        client.register("s", start="latest")
        small_bundles(worker)
        (path,) = tmp_path.rglob("0000000000000000.qseg")
        path.chmod(0o600)
        with path.open("r+b") as file:
            file.seek(5000)
            file.write(b"\xff" * 8)
        until(lambda: figure(worker, EngineFigure.QUARANTINED) == 1, "the rescue")
        client.send(m.Credit("default", "s", COUNT))
        left = values(client, COUNT - 1)
        gap = client.expect(m.Gap)
        assert (gap.segment_seq, gap.bundle_count, gap.reason) == (0, 1, "damaged")
        assert left == [value for value in range(COUNT) if value != gap.bundle_index_first]
        assert figure(worker, EngineFigure.LAST_SCRUB_UNIX_NS) > 0
