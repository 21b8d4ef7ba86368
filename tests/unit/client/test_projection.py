"""Reading only what is asked for, and reading ranges."""

from __future__ import annotations

import os
import re
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from quiver_actors.base.model import BundleId
from quiver_actors.base.protocol.messages import (
    ClientMessage,
    ListSegments,
    OpenSegment,
    SegmentInfo,
    SegmentList,
    SegmentOpened,
    TopicInfo,
)
from quiver_actors.client import Client, connect
from quiver_actors.client.projection import Projection
from quiver_actors.client.ranges import SegmentPart, parts_of
from quiver_actors.client.segments import MappedSegment
from quiver_actors.client.slots import TopicSlots
from quiver_actors.errors import NotStored, StorageUnavailable, UsageError, WorkerUnavailable
from tests.unit.client.feeding import BUNDLES, Feeder, batch, take
from tests.unit.client.peer import Peer, PeerSession, refuse
from tests.unit.store.segment.logfile import contiguous

WIDE_ROWS = 1_000_000
FAULT_BYTES = 2 << 20
"""What the kernel maps for one touched page at most: a large folio of the page cache."""


@pytest.fixture(scope="module")
def wide(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two slots of four columns with 8 MB each."""
    values = np.arange(WIDE_ROWS)
    slots = {slot: pa.record_batch({f"c{n}": values + n for n in range(4)}) for slot in (3, 7)}
    path = tmp_path_factory.mktemp("wide") / "wide.qseg"
    path.write_bytes(contiguous([slots]))
    return path


def mapped(path: Path, projection: Projection) -> MappedSegment:
    return MappedSegment.sealed(
        os.open(path, os.O_RDONLY), path.stat().st_size, 4, TopicSlots(TopicInfo("travel", {}, "wal", 0)), 0, projection
    )


def resident_bytes(path: Path) -> int:
    """How much of the file's mappings has been touched (or mapped around what was touched)."""
    found = 0
    for block in re.split(r"^(?=[0-9a-f]+-[0-9a-f]+ )", Path("/proc/self/smaps").read_text(), flags=re.MULTILINE):
        if str(path) in block:
            found += sum(1024 * int(size) for size in re.findall(r"^Rss:\s+(\d+) kB", block, re.MULTILINE))
    return found


def test_columns_that_are_not_asked_for_are_not_touched(wide: Path) -> None:
    segment = mapped(wide, Projection(frozenset([3]), {3: ("c2",)}))
    (found,) = segment.bundle(0).values()
    assert found.schema.names == ["c2"]
    # The manifest, the end of the stream, and the head of the batch.
    assert resident_bytes(wide) <= 4 * FAULT_BYTES
    allocated = pa.total_allocated_bytes()
    assert found.column(0).to_numpy().sum() == (np.arange(WIDE_ROWS) + 2).sum()
    assert pa.total_allocated_bytes() == allocated, "nothing is copied"
    # Of 64 MB in all.
    assert 8 * WIDE_ROWS <= resident_bytes(wide) <= 8 * WIDE_ROWS + 6 * FAULT_BYTES


def test_columns_come_in_the_order_asked_for_and_unknown_ones_are_left_out(wide: Path) -> None:
    segment = mapped(wide, Projection(None, {3: ("c3", "nosuch", "c0"), 7: ()}))
    found = segment.bundle(0)
    assert found[3].schema.names == ["c3", "c0"]
    assert found[7].num_columns == 0
    assert found[7].num_rows == WIDE_ROWS
    assert segment.batch(0, 3).schema.names == ["c3", "c0"]


def test_slots_that_are_not_asked_for_are_not_there(feeder: Feeder, client: Client) -> None:
    with client.subscribe("exporter", topic="travel", slots=["weather"]) as subscription:
        first, second = take(subscription, 2)
        assert first.slot_ids == (7,)
        assert first.batch.equals(batch(0, 1))
        assert first.row_count == 1
        assert "flights" not in first
        with pytest.raises(UsageError, match="not among the slots"):
            first["flights"]
        assert second.slots == {}
        assert second.row_count == 0


# --- ranges ----------------------------------------------------------------------------------------------------------------------


def info(segment_seq: int, bundles: int) -> SegmentInfo:
    return SegmentInfo(segment_seq, bundles, 0, 0, 0, 0)


def at(segment_seq: int, bundle_index: int) -> BundleId:
    return BundleId("travel", 0, segment_seq, bundle_index)


STORED = [info(6, 20), info(5, 10), info(4, 5)]


@pytest.mark.parametrize(
    ("start", "end", "parts"),
    [
        (None, None, [(4, 0, 5), (5, 0, 10), (6, 0, 20)]),
        (at(4, 2), None, [(4, 2, 5), (5, 0, 10), (6, 0, 20)]),
        (at(4, 2), at(5, 3), [(4, 2, 5), (5, 0, 3)]),
        (at(5, 2), at(5, 3), [(5, 2, 3)]),
        (at(5, 3), at(5, 3), []),
        (at(4, 5), at(5, 0), []),
        (at(4, 0), at(7, 0), [(4, 0, 5), (5, 0, 10), (6, 0, 20)]),
        (at(6, 0), at(4, 0), []),
    ],
)
def test_parts_of_a_range(start: BundleId | None, end: BundleId | None, parts: list[tuple[int, int, int]]) -> None:
    assert parts_of(STORED, start, end, "travel", 0) == [SegmentPart(*part) for part in parts]


@pytest.mark.parametrize(
    ("start", "end", "reason"),
    [
        (at(3, 0), None, "stored any more"),
        (at(4, 0), at(7, 1), "to be read yet"),
        (at(4, 0), at(6, 21), "goes to 21"),
    ],
)
def test_range_that_is_not_stored_is_an_error(start: BundleId, end: BundleId | None, reason: str) -> None:
    with pytest.raises(NotStored, match=reason):
        parts_of(STORED, start, end, "travel", 0)
    with pytest.raises(NotStored, match="stored any more"):
        parts_of([info(4, 5), info(6, 20)], at(4, 0), at(6, 1), "travel", 0)
    with pytest.raises(UsageError):
        parts_of(STORED, at(4, 0), None, "travel", 1)


JUMP = [
    SegmentInfo(4, 5, 0, 0, 0, 0, position_start=100, position_end=200),
    SegmentInfo(1029, 7, 0, 0, 0, 0, position_start=200, position_end=300),
    SegmentInfo(1031, 2, 0, 0, 0, 0, position_start=364, position_end=400),
]
"""A crash between 4 and 1029; 1030 was deleted."""


@pytest.mark.parametrize(
    ("start", "end", "parts"),
    [
        (None, at(1030, 0), [(4, 0, 5), (1029, 0, 7)]),
        (at(4, 3), at(1029, 2), [(4, 3, 5), (1029, 0, 2)]),
        (at(5, 0), at(1029, 2), [(1029, 0, 2)]),
        (at(4, 5), at(800, 0), []),
    ],
)
def test_numbers_that_a_crash_has_skipped_are_passed_over(
    start: BundleId | None, end: BundleId, parts: list[tuple[int, int, int]]
) -> None:
    assert parts_of(JUMP, start, end, "travel", 0) == [SegmentPart(*part) for part in parts]


@pytest.mark.parametrize(
    ("start", "end"), [(None, None), (at(4, 0), at(800, 1)), (at(1030, 0), None), (at(3, 0), at(5, 0))]
)
def test_segments_that_are_gone_are_not_passed_over(start: BundleId | None, end: BundleId | None) -> None:
    with pytest.raises(NotStored, match="stored any more"):
        parts_of(JUMP, start, end, "travel", 0)


def test_read_gives_the_same_bundles_again_without_a_claim(peer: Peer, client: Client, segment: Path) -> None:
    def give(session: PeerSession, message: ClientMessage) -> bool:
        if isinstance(message, ListSegments):
            session.send(SegmentList(message.tag, [info(4, BUNDLES)]))
        elif isinstance(message, OpenSegment):
            opened = SegmentOpened(message.tag, "travel", 4, segment.stat().st_size)
            with open(segment, "rb") as file:
                session.send_with_descriptors([opened], file.fileno())
        return True

    peer.handlers[ListSegments] = peer.handlers[OpenSegment] = give
    for _ in range(2):
        found = list(client.read("travel", 0, at(4, 5), at(4, 25), slots=["flights"]))
        assert [bundle.bundle_id.bundle_index for bundle in found] == list(range(5, 25))
        assert all(bundle[3].equals(batch(number)) for number, bundle in enumerate(found, 5))
    with pytest.raises(NotStored):
        client.read("travel", 0, at(4, 5), at(5, 25))


def test_a_read_goes_on_when_the_file_of_a_segment_is_replaced_at_that_moment(
    peer: Peer, client: Client, segment: Path
) -> None:
    refusals = [refuse("storage_unavailable", "segment 4 cannot be opened now")] * 2

    def give(session: PeerSession, message: ClientMessage) -> bool:
        if isinstance(message, ListSegments):
            session.send(SegmentList(message.tag, [info(4, BUNDLES)]))
        elif refusals:
            return refusals.pop()(session, message)
        elif isinstance(message, OpenSegment):
            with open(segment, "rb") as file:
                opened = SegmentOpened(message.tag, "travel", 4, segment.stat().st_size)
                session.send_with_descriptors([opened], file.fileno())
        return True

    peer.handlers[ListSegments] = peer.handlers[OpenSegment] = give
    assert [bundle.bundle_id.bundle_index for bundle in client.read("travel", 0, at(4, 5), at(4, 8))] == [5, 6, 7]
    assert not refusals


def test_a_read_without_an_end_says_what_keeps_bundles_from_being_read(peer: Peer, client: Client) -> None:
    asked: list[ListSegments] = []

    def give(session: PeerSession, message: ClientMessage) -> bool:
        assert isinstance(message, ListSegments)
        asked.append(message)
        session.send(SegmentList(message.tag, [info(4, BUNDLES)], obstacle="segment 5 is not synced yet"))
        return True

    peer.handlers[ListSegments] = give
    with pytest.raises(StorageUnavailable, match="segment 5 is not synced yet; try again, or read up to an end"):
        client.read("travel", 0)
    client.read("travel", 0, None, at(4, 25))
    assert {message.patience_ms for message in asked} == {9000}, "nine tenths of the timeout"


def test_read_of_a_core_that_is_not_there(peer: Peer) -> None:
    with connect(peer.run_dir, timeout=0.2) as client, pytest.raises((UsageError, WorkerUnavailable)):
        client.read("travel", 3)
