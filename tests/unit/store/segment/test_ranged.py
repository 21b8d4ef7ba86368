"""A ranged reader shows what `SegmentReader` shows of the whole file, touches nothing that was not fetched, and no damaged byte."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random

import numpy as np
import pyarrow as pa
import pytest

from quiver_actors.base.checksum import crc32
from quiver_actors.errors import ChecksumMismatch, FormatError, SlotNotInBundle
from quiver_actors.store.segment.ranged import WINDOW_BYTES, RangedReader
from quiver_actors.store.segment.reader import SegmentReader
from tests.unit.store.segment.logfile import LogFile
from tests.unit.store.segment.test_integrity import SHAPES


class Blocks:
    """A source whose memory is noise where nothing was fetched. `sent` is what comes when a block is fetched."""

    def __init__(self, content: bytes, block_bytes: int = 64, sent: bytes | None = None) -> None:
        self.block_bytes = block_bytes
        starts = range(0, len(content), block_bytes)
        self.checksums = [crc32(content[start : start + block_bytes]) for start in starts]
        self.fetched: set[int] = set()
        self.calls = 0
        self.sent = bytearray(content if sent is None else sent)
        self._bytes = bytearray(b"\xa5" * len(content))
        self.memory = memoryview(self._bytes).toreadonly()

    def fetch(self, blocks: Sequence[int]) -> None:
        self.calls += 1
        for block in blocks:
            piece = slice(block * self.block_bytes, (block + 1) * self.block_bytes)
            self._bytes[piece] = self.sent[piece]
            self.fetched.add(block)

    @property
    def fetched_bytes(self) -> int:
        return len(self.fetched) * self.block_bytes


@pytest.fixture(params=SHAPES, ids=lambda name: name.replace(", ", "-").replace(" ", "_"))
def content(request: pytest.FixtureRequest) -> bytes:
    make: Callable[[], bytes] = SHAPES[request.param]
    return make()


@pytest.mark.parametrize("block_bytes", [64, 1000, 64 << 10])
def test_all_is_as_in_the_whole_file(content: bytes, block_bytes: int) -> None:
    whole, reader = SegmentReader(content), RangedReader(Blocks(content, block_bytes))
    assert reader.bundle_count == whole.bundle_count
    assert reader.row_count == whole.row_count
    assert reader.incarnation == whole.incarnation
    extension = whole.footer.extension
    assert reader.ingestion_span == (
        extension and (extension.first_ingestion_ts_nanos, extension.last_ingestion_ts_nanos)
    )
    assert reader.streams == whole.streams
    for stream in whole.streams:
        assert reader.schema(stream.stream_id).equals(whole.schema(stream.stream_id), check_metadata=True)
    for index in Random(1).sample(range(whole.bundle_count), whole.bundle_count):
        assert reader.bundle(index) == whole.bundle(index)
        assert reader.is_lost(index) == whole.is_lost(index)
        assert reader.slot_ids(index) == whole.slot_ids(index)
        for name in ("item_count", "byte_count", "ingestion_ts"):
            assert getattr(reader, name)(index) == getattr(whole, name)(index)


def test_some_slots_and_columns_are_as_in_the_whole_file(content: bytes) -> None:
    whole, rng = SegmentReader(content), Random(2)
    for _ in range(20):
        bundles = [whole.bundle(index) for index in range(whole.bundle_count)]
        slots = sorted({slot for bundle in bundles for slot in bundle})
        chosen = rng.sample(slots, rng.randint(1, len(slots)))
        names = {slot: sorted({name for b in bundles if slot in b for name in b[slot].schema.names}) for slot in chosen}
        columns = {
            slot: rng.sample(known, rng.randint(0, len(known))) for slot, known in names.items() if rng.random() < 0.7
        }
        reader = RangedReader(Blocks(content), slots=chosen, columns=columns)
        for index in rng.sample(range(whole.bundle_count), min(5, whole.bundle_count)):
            expected = {
                slot: batch.select(columns[slot]) if slot in columns else batch
                for slot, batch in whole.bundle(index, chosen).items()
            }
            assert reader.bundle(index, chosen) == expected


def test_a_flip_of_any_byte_is_found_before_its_value_is_seen() -> None:
    log = LogFile()
    for number in range(3):
        log.push({0: pa.record_batch({"id": [number], "name": [f"bundle {number}"]})})
    content = log.seal()
    whole = [SegmentReader(content).bundle(index) for index in range(3)]
    for place in range(len(content)):
        damaged = bytearray(content)
        damaged[place] ^= 1 << place % 8
        source = Blocks(content, sent=bytes(damaged))
        found = 0
        try:
            reader = RangedReader(source)
        except ChecksumMismatch:
            continue
        for index in range(3):
            try:
                assert reader.bundle(index) == whole[index]
            except ChecksumMismatch:
                found += 1
        assert found or place // 64 not in source.fetched


def test_damage_that_comes_later_is_found_by_the_second_proof() -> None:
    log = LogFile()
    log.push({0: pa.record_batch({"id": list(range(1000))})})
    source = Blocks(log.seal())
    reader = RangedReader(source)
    reader.check(0)
    source.sent[2000] ^= 1
    source.fetch([2000 // 64])
    with pytest.raises(ChecksumMismatch, match="64 bytes from byte 1984"):
        reader.check(0)


def test_one_of_ten_columns_fetches_less_than_a_fifth() -> None:
    rng, log = np.random.default_rng(1), LogFile()
    for _ in range(4):
        log.push({0: pa.record_batch({f"c{number}": rng.integers(0, 1 << 60, 60_000) for number in range(10)})})
    content = log.seal()
    source = Blocks(content, 64 << 10)
    reader = RangedReader(source, columns={0: ["c4"]})
    for index, bundle in enumerate(log.pushed):
        assert reader.bundle(index) == {0: bundle[0].select(["c4"])}
    assert source.fetched_bytes < 0.2 * len(content)


def test_a_bundle_far_from_the_others_is_fetched_alone() -> None:
    log = LogFile()
    for number in range(50):
        log.push({0: pa.record_batch({"id": np.full(1000, number)})})
    content = log.seal()
    source = Blocks(content)
    reader = RangedReader(source, end=26)
    assert reader.bundle(25)[0].column(0)[0].as_py() == 25
    assert source.fetched_bytes < 0.25 * len(content)


def test_slots_that_were_not_wanted_come_when_they_are_asked_for() -> None:
    log = LogFile()
    log.push({0: pa.record_batch({"id": [1]}), 5: pa.record_batch({"name": ["a"]})})
    reader = RangedReader(Blocks(log.seal()), slots=[0], columns={0: []})
    assert reader.decode_batch(0, 0).num_columns == 0
    assert reader.decode_batch(0, 5) == log.pushed[0][5]
    with pytest.raises(SlotNotInBundle):
        reader.decode_batch(0, 1)
    with pytest.raises(IndexError):
        reader.check(1)


@pytest.mark.parametrize("columns", [None, {0: ["id"]}], ids=["whole", "a column"])
def test_compressed_bundles_are_fetched_whole(columns: dict[int, list[str]] | None) -> None:
    log = LogFile()
    for number in range(3):
        batch = pa.record_batch({"id": np.full(1000, number), "name": [f"bundle {number}"] * 1000})
        log.push({0: batch}, options=pa.ipc.IpcWriteOptions(compression="zstd"))
    reader = RangedReader(Blocks(log.seal()), columns=columns)
    for index, bundle in enumerate(log.pushed):
        assert reader.bundle(index) == {0: bundle[0].select(["id"]) if columns else bundle[0]}


def test_large_bundles_are_not_fetched_before_they_are_asked_for() -> None:
    log = LogFile()
    for _ in range(2):
        log.push({0: pa.record_batch({"byte": np.zeros(WINDOW_BYTES // 2 + 1, np.uint8)})})
    source = Blocks(log.seal(), 1 << 20)
    reader = RangedReader(source)
    for index, bundle in enumerate(log.pushed):
        assert reader.bundle(index) == bundle
        assert source.fetched_bytes < (index + 1) * (WINDOW_BYTES // 2) + (8 << 20)


def test_bundles_alike_are_read_one_by_one() -> None:
    log = LogFile()
    for number in range(50):
        log.push({0: pa.record_batch({"id": [number]})})
    content = log.seal()
    assert len(SegmentReader(content).runs(range(50))) == 1
    assert RangedReader(Blocks(content)).runs(range(50)) == []


def test_a_file_that_is_no_segment_is_refused() -> None:
    with pytest.raises(FormatError):
        RangedReader(Blocks(b"no segment" * 100))
    with pytest.raises(FormatError):
        RangedReader(Blocks(b""))


@pytest.mark.parametrize("damaged", range(4))
def test_a_damaged_bundle_spoils_none_that_is_fetched_with_it(damaged: int) -> None:
    log = LogFile()
    for number in range(4):
        log.push({0: pa.record_batch({"id": np.full(1000, number)})})
    content = log.seal()
    whole = SegmentReader(content)
    sent = bytearray(content)
    sent[content.index(np.full(1000, damaged).tobytes()) + 4000] ^= 1
    reader = RangedReader(Blocks(content, sent=bytes(sent)))
    for index in range(4):
        if index == damaged:
            with pytest.raises(ChecksumMismatch):
                reader.bundle(index)
        else:
            assert reader.bundle(index) == whole.bundle(index)


def test_a_file_of_which_all_is_wanted_comes_at_once() -> None:
    log = LogFile()
    for number in range(50):
        log.push({0: pa.record_batch({"id": np.full(1000, number)})})
    content = log.seal()
    source = Blocks(content)
    reader = RangedReader(source, is_all_wanted=True)
    assert source.calls == 1
    assert [reader.bundle(index)[0].column(0)[0].as_py() for index in range(50)] == list(range(50))
    assert source.calls == 1


def test_damage_in_a_file_of_which_all_is_wanted_leaves_the_other_bundles_readable() -> None:
    log = LogFile()
    for number in range(50):
        log.push({0: pa.record_batch({"id": np.full(1000, number)})})
    content = log.seal()
    place = content.index(np.full(1000, 7).tobytes())
    reader = RangedReader(Blocks(content, sent=content[:place] + b"x" + content[place + 1 :]), is_all_wanted=True)
    with pytest.raises(ChecksumMismatch):
        reader.bundle(7)
    others = [index for index in range(50) if index != 7]
    assert [reader.bundle(index)[0].column(0)[0].as_py() for index in others] == others
