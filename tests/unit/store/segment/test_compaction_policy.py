"""Which segments compaction pays for, which rewritings are refused, and what the checksums of a compacted segment prove."""

from __future__ import annotations

from collections.abc import Callable
from itertools import chain

import numpy as np
import numpy.typing as npt
import pytest

from quiver_actors.base.checksum import crc32
from quiver_actors.errors import FormatError, InvalidFormat
from quiver_actors.store.segment.arrow_file import FILE_START
from quiver_actors.store.segment.compaction import Rewriting, bundle_checksums, check_rewriting, judge
from quiver_actors.store.segment.manifest import Manifest
from quiver_actors.store.segment.outline import Outline, Read, read_messages, read_outline
from quiver_actors.store.segment.reader import SegmentReader
from quiver_actors.store.segment.salvage import salvage
from tests.golden.parser import parse_segment
from tests.unit.store.segment import batches
from tests.unit.store.segment.logfile import LogFile
from tests.unit.store.segment.test_compaction import compacted, reads, rewritten, words_of
from tests.unit.store.segment.test_outline import with_directory

# --- policy -----------------------------------------------------------------------------------------------------------------


def verdict(log: LogFile) -> tuple[bool, str]:
    reader = log.sealed()
    return judge(reader.footer, reader.streams)[:2]


def test_many_small_bundles_pay_and_the_estimate_is_near() -> None:
    log = LogFile()
    for n in range(600):
        log.push({1: batches.plain(2, n)})
    data = log.seal()
    reader = SegmentReader(data)
    found = judge(reader.footer, reader.streams)
    assert found.pays
    saved = len(data) - len(rewritten(data))
    assert saved * 0.9 < found.saving_bytes < saved * 1.1


def test_many_dictionary_streams_pay() -> None:
    log = LogFile()
    for n in range(20):
        log.push({1: words_of([f"{n}-{k}-{'x' * 300}" for k in range(30)])})
    assert verdict(log) == (True, "19 streams more than schemas")


def test_large_bundles_and_few_bundles_do_not_pay() -> None:
    large, few = LogFile(), LogFile()
    for n in range(100):
        large.push({1: batches.plain(400, n)})
    for n in range(10):
        few.push({1: batches.plain(1, n)})
    assert not verdict(large)[0]
    assert not verdict(few)[0]
    assert not verdict(LogFile())[0]


def test_contiguous_segments_are_never_rewritten_again() -> None:
    log = LogFile()
    for n in range(600):
        log.push({1: batches.plain(2, n)})
    reader = compacted(log)
    assert judge(reader.footer, reader.streams) == (False, "contiguous already", 0)


# --- checksums of bundles, and what they prove --------------------------------------------------------------------------------


def ref_checksums(outline: Outline, read: Read) -> npt.NDArray[np.uint32]:
    """The checksum of each slot reference, from the bytes as they are read now."""
    checksums: list[int] = []
    starts = [0]
    for stream in outline.streams:
        head_bytes = int(stream.batches[0, 0]) - stream.byte_offset if len(stream.batches) else 0
        head_crc = crc32(read(head_bytes, stream.byte_offset))
        checksums += [crc32(message, head_crc) for message in read_messages(read, stream.batches)]
        starts.append(len(checksums))
    refs = outline.columns.refs
    found: npt.NDArray[np.uint32] = np.array(checksums, np.uint32)[np.array(starts)[refs[:, 1]] + refs[:, 2]]
    return found


def checksummed(log: LogFile) -> bytes:
    data = rewritten(log.seal())
    outline = read_outline(reads(data), len(data))
    expected = outline.columns.bundle_crc32
    assert expected is not None
    assert np.array_equal(bundle_checksums(outline.columns, ref_checksums(outline, reads(data))), expected)
    return data


def test_the_manifest_holds_a_checksum_of_each_bundle_for_whoever_knows_the_column() -> None:
    assert "bundle_crc32" in Manifest._fields
    log = LogFile()
    log.push({1: batches.plain(), 4: words_of(["a"])})
    log.push({1: batches.plain(2)})
    assert parse_segment(checksummed(log)).manifest.keys() >= {"bundle_crc32", "sequence", "slot_refs"}
    assert "bundle_crc32" not in parse_segment(log.seal()).manifest


def left_after(data: bytes) -> list[dict[int, dict[str, list[object]]]]:
    """What a rescue makes of damaged bytes: values by slot of each bundle."""
    outline = salvage(reads(data), len(data))
    new = b"".join(chain.from_iterable(Rewriting(outline, reads(data)).parts()))
    parse_segment(new)
    reader = SegmentReader(new)
    reader.verify_checksum()
    return [
        {slot_id: batch.to_pydict() for slot_id, batch in reader.bundle(index).items()}
        for index in range(reader.bundle_count)
    ]


def test_damage_in_the_streams_costs_the_bundles_that_it_touches() -> None:
    log = LogFile()
    for n in range(40):
        log.push({1: batches.plain(3, n), **({2: words_of([f"w{n}", "x"])} if n % 4 == 0 else {})})
    data = checksummed(log)
    outline = read_outline(reads(data), len(data))
    values = [{slot: batch.to_pydict() for slot, batch in pushed.items()} for pushed in log.pushed]
    first, last = (int(outline.streams[0].batches[n, 0]) for n in (0, 39))
    for at in range(first, last, 211):
        damaged = bytearray(data)
        damaged[at] ^= 1 << at % 8
        left = left_after(bytes(damaged))
        wrong = [index for index in range(40) if left[index] != values[index]]
        assert len(wrong) == 1
        assert left[wrong[0]] == {}


def test_damage_to_an_arrow_footer_costs_nothing() -> None:
    log = LogFile()
    for n in range(40):
        log.push({1: batches.plain(3, n)})
    data = checksummed(log)
    end = SegmentReader(data).footer.directory_offset
    footer_bytes = int.from_bytes(data[end - 10 : end - 6], "little")
    for at in range(end - 10 - footer_bytes, end, 37):
        damaged = bytearray(data)
        damaged[at] ^= 0x10
        assert all(left_after(bytes(damaged)))


def test_damage_to_a_dictionary_or_schema_costs_its_stream_and_no_other() -> None:
    log = LogFile()
    for n in range(10):
        log.push({n % 2: words_of([f"w{n}", "x"]) if n % 2 else batches.plain(2, n)})
    data = bytearray(checksummed(log))
    outline = read_outline(reads(data), len(data)).streams[1]
    for at in (int(outline.dictionaries[0, 0]) + 200, outline.byte_offset + len(FILE_START)):
        damaged = bytearray(data)
        damaged[at] ^= 4
        assert [bool(bundle) for bundle in left_after(bytes(damaged))] == [n % 2 == 0 for n in range(10)]


@pytest.mark.parametrize(
    "changes", [{"byte_length": 1 << 40}, {"chunk_count": 1 << 30}], ids=lambda each: next(iter(each))
)
def test_a_directory_that_names_a_stream_that_cannot_be_costs_that_stream(changes: dict[str, int]) -> None:
    """Nothing is reserved for what it claims."""
    log = LogFile()
    for n in range(10):
        log.push({1 + n % 2: batches.plain(2, n)})
    data = with_directory(checksummed(log), 1, **changes)
    assert [bool(bundle) for bundle in left_after(data)] == [n % 2 == 0 for n in range(10)]


def test_without_checksums_nothing_is_proven() -> None:
    log = LogFile()
    log.push({1: batches.plain()})
    with pytest.raises(FormatError, match="no checksums"):
        salvage(reads(log.seal()), len(log.seal()))


def other_rows(outline: Outline) -> Outline:
    return outline._replace(extension=outline.extension._replace(row_count=1))


def other_sequences(outline: Outline) -> Outline:
    return outline._replace(columns=outline.columns._replace(sequence=outline.columns.sequence + np.uint64(1)))


def other_slots(outline: Outline) -> Outline:
    refs = outline.columns.refs.copy()
    refs[:, 0] += 1
    return outline._replace(columns=outline.columns._replace(refs=refs))


def other_batches(outline: Outline) -> Outline:
    refs = outline.columns.refs.copy()
    refs[:, 2] = 0
    return outline._replace(columns=outline.columns._replace(refs=refs))


def other_schemas(outline: Outline) -> Outline:
    first, *rest = outline.streams
    other = first._replace(schema=first.schema._replace(fingerprint=bytes(32)))
    return outline._replace(streams=(other, *rest))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (other_rows, "its footer"),
        (other_sequences, "sequence"),
        (other_slots, "its footer"),
        (other_batches, "other messages"),
        (other_schemas, "other messages"),
    ],
)
def test_a_rewriting_that_says_something_else_is_refused(change: Callable[[Outline], Outline], said: str) -> None:
    log = LogFile()
    for n in range(3):
        log.push({1: batches.plain(n), 2: words_of([f"w{n}"])})
    data = log.seal()
    old = read_outline(reads(data), len(data))
    new = rewritten(data)
    outline = read_outline(reads(new), len(new))
    with pytest.raises(InvalidFormat, match=said):
        check_rewriting(old, change(outline))
