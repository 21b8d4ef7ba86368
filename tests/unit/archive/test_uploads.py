"""One segment on its way into a store whose calls fail, and its content that may change in between."""

from __future__ import annotations

import threading
from pathlib import Path

import pyarrow as pa
import pytest

import quiver_actors
from quiver_actors.archive.blocks import decode_sums
from quiver_actors.archive.checking import check_segment
from quiver_actors.archive.keys import StreamKey, crc_key, segment_key
from quiver_actors.archive.manifest import key_of
from quiver_actors.archive.uploads import Throttle, sparse_index, upload
from quiver_actors.base.protocol.messages import SegmentInfo
from quiver_actors.errors import ChecksumMismatch
from quiver_actors.store.objects.errors import ArchiveUnavailable
from quiver_actors.store.objects.object_store import ObjectStore
from tests.support.faulty_objects import FAULTS, FaultyStore

STREAM = StreamKey("topic", "17", 0)
UNLIMITED = Throttle(0, lambda seconds: None)
BUNDLES = 2001


@pytest.fixture(scope="module")
def segment(tmp_path_factory: pytest.TempPathFactory) -> tuple[SegmentInfo, bytes]:
    """A sealed segment with so many bundles, and what its worker says of it."""
    place = tmp_path_factory.mktemp("store")
    with quiver_actors.open(place) as store:
        store.push_many([pa.record_batch({"id": pa.array([n], pa.int64())}) for n in range(BUNDLES)])
        store.flush()
        (info,) = store.segments()[0]
        (path,) = place.rglob("*.qseg")
        return info, path.read_bytes()


def content_at(store: ObjectStore, key: str) -> bytes:
    found = store.get(key)
    assert found is not None
    return found.content


def test_a_segment_is_described_and_lies_beside_its_checksums(
    store: ObjectStore, segment: tuple[SegmentInfo, bytes]
) -> None:
    info, content = segment
    done = upload(store, "node", STREAM, info, memoryview(content), UNLIMITED)
    key = segment_key("node", STREAM, info.segment_seq, 0)
    assert content_at(store, key) == content
    sums = decode_sums(content_at(store, crc_key(key)))
    sums.check(0, content)
    assert (done.size_bytes, done.crc32, done.bundle_count, done.row_count) == (
        len(content),
        sums.crc32,
        BUNDLES,
        BUNDLES,
    )
    assert len(done.index) == 3
    assert sorted(done.index) == list(done.index)
    assert done.etag


def test_the_sparse_index_points_at_messages(segment: tuple[SegmentInfo, bytes]) -> None:
    for offset in sparse_index(memoryview(segment[1])):
        assert segment[1][offset : offset + 4] == b"\xff\xff\xff\xff"  # how an encapsulated Arrow message begins


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("at", range(5))
def test_each_call_may_fail_and_the_segment_is_one_object(
    store: ObjectStore, segment: tuple[SegmentInfo, bytes], at: int, fault: str
) -> None:
    info, content = segment
    faulty = FaultyStore(store, at, fault)
    for _ in range(3):
        try:
            done = upload(faulty, "node", STREAM, info, memoryview(content), UNLIMITED)
            break
        except ArchiveUnavailable:
            pass
    else:
        raise AssertionError("the same call was to succeed at last")
    assert done.generation == 0
    assert {each.key for each in store.objects("")} == {
        segment_key("node", STREAM, info.segment_seq, 0),
        crc_key(segment_key("node", STREAM, info.segment_seq, 0)),
    }


def test_another_content_takes_the_next_generation_and_keeps_the_first(
    store: ObjectStore, segment: tuple[SegmentInfo, bytes], tmp_path: Path
) -> None:
    info, content = segment
    with quiver_actors.open(tmp_path / "other") as other:
        other.push(pa.record_batch({"id": pa.array([7], pa.int64())}))
        other.flush()
        (path,) = (tmp_path / "other").rglob("*.qseg")
        changed = path.read_bytes()
    for each, generation in ((content, 0), (changed, 1), (content, 0), (changed, 1)):
        assert upload(store, "node", STREAM, info, memoryview(each), UNLIMITED).generation == generation
    assert content_at(store, segment_key("node", STREAM, info.segment_seq, 0)) == content
    assert content_at(store, segment_key("node", STREAM, info.segment_seq, 1)) == changed


def small_segment(directory: Path, number: int) -> tuple[SegmentInfo, bytes]:
    """A segment whose size does not depend on what is in it."""
    with quiver_actors.open(directory) as store:
        store.push(pa.record_batch({"id": pa.array([number], pa.int64())}))
        store.flush()
        (info,) = store.segments()[0]
        (path,) = directory.rglob("*.qseg")
        return info, path.read_bytes()


def test_another_segment_of_the_same_number_and_size_is_no_copy(store: ObjectStore, tmp_path: Path) -> None:
    """A copy of the data directory has stored it, and its archiver did not come to record it."""
    found = [small_segment(tmp_path / str(number), number) for number in (7, 8)]
    assert len({len(content) for _, content in found}) == 1
    rows = [upload(store, "node", STREAM, info, memoryview(content), UNLIMITED) for info, content in found]
    assert [row.generation for row in rows] == [0, 1]
    for row, (_, content) in zip(rows, found, strict=True):
        key = key_of("node", STREAM, row)
        assert content_at(store, key) == content
        assert check_segment(store, key, row) == ""
    for name in (lambda key: key, crc_key):
        key, other = (name(key_of("node", STREAM, row)) for row in rows)
        content = content_at(store, other)
        store.put(key, [content], len(content))
    assert check_segment(store, key_of("node", STREAM, rows[0]), rows[0]) != "", (
        "nor is it where somebody has put it there"
    )


def test_a_torn_object_is_sent_again(store: ObjectStore, segment: tuple[SegmentInfo, bytes]) -> None:
    info, content = segment
    key = segment_key("node", STREAM, info.segment_seq, 0)
    store.put(key, [content[:100]], 100)
    upload(store, "node", STREAM, info, memoryview(content), UNLIMITED)
    assert content_at(store, key) == content


def test_other_bytes_of_the_same_size_under_the_key_do_not_count_as_sent(
    store: ObjectStore, segment: tuple[SegmentInfo, bytes]
) -> None:
    info, content = segment
    key = segment_key("node", STREAM, info.segment_seq, 0)
    store.put(key, [content[:-9] + b"something"], len(content))
    upload(store, "node", STREAM, info, memoryview(content), UNLIMITED)
    assert content_at(store, key) == content


def test_a_damaged_segment_is_not_sent(store: ObjectStore, segment: tuple[SegmentInfo, bytes]) -> None:
    info, content = segment
    damaged = bytearray(content)
    damaged[len(damaged) // 2] ^= 1
    with pytest.raises(ChecksumMismatch):
        upload(store, "node", STREAM, info, memoryview(bytes(damaged)), UNLIMITED)
    assert list(store.objects("")) == []


def test_the_throttle_waits_as_long_as_its_limit_says() -> None:
    waited: list[float] = []

    class Enough(Exception):
        """The throttle waits."""

    def wait(seconds: float) -> None:
        waited.append(seconds)
        raise Enough

    throttle = Throttle(4 << 20, wait)
    pieces = throttle.pieces(memoryview(bytes(8 << 20)))
    assert len(next(pieces)) == 1 << 20
    with pytest.raises(Enough):
        next(pieces)
    assert 0 < waited[0] <= 0.25
    assert sum(piece.nbytes for piece in UNLIMITED.pieces(memoryview(bytes(20 << 20)))) == 20 << 20


def test_what_waits_for_its_turn_is_not_sent_when_the_archiver_ends() -> None:
    """It neither waits for minutes nor sends the rest at once."""
    pieces = Throttle(1, threading.Event().wait).paced([b"", b""])
    assert list(pieces) == [b"", b""]
    stopping = threading.Event()
    stopping.set()
    slow = Throttle(1, stopping.wait).paced([b"first", b"second"])
    assert next(slow) == b"first"
    with pytest.raises(ArchiveUnavailable, match="the archiver ends"):
        next(slow)
