"""Reading a log back: every valid entry, every damaged span, the torn end; in chunks of any size the same."""

from __future__ import annotations

from random import Random

import pytest

from quiver_actors.store.wal.reader import LogReader, LogScan, Span
from tests.unit.store.wal.logs import HEADER_BYTES, Laid, entry, flipped, lay, reader_of

SIZES = (0, 1, 200, 3000, 70, 5000, 64, 900)
CHUNKS = (1, 2, 3, 7, 64, 121, 1000, 4096, 1 << 16, 1 << 20, 4 << 20)


def log(sizes: tuple[int, ...] = SIZES, *, tail: bytes = b"", first: int = 10) -> Laid:
    random = Random(str(sizes))
    return lay([entry(first + n, random.randbytes(size)) for n, size in enumerate(sizes)], tail=tail)


def scan(data: bytes, *, stride: int = 64, chunk_bytes: int = 1 << 20, last_sequence: int | None = None) -> LogScan:
    reader = LogReader(reader_of(data), len(data), chunk_bytes)
    return reader.scan(HEADER_BYTES, stride=stride, last_sequence=last_sequence)


def found(result: LogScan) -> tuple[list[tuple[int, int]], list[tuple[int, int]], int, bool]:
    entries = [(span.start, span.end) for span in result.entries]
    return entries, [(span.start, span.end) for span in result.damaged], result.end, result.end_marked


# --- whole logs --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("tail", [b"", bytes(4), bytes(100_000)], ids=["end of file", "mark", "preallocated"])
def test_every_entry_is_found(tail: bytes) -> None:
    laid = log(tail=tail)
    assert found(scan(laid.data)) == (laid.spans, [], laid.spans[-1][1], True)


def test_a_log_without_entries() -> None:
    assert found(scan(b"h" * HEADER_BYTES)) == ([], [], HEADER_BYTES, True)
    assert found(scan(b"h" * HEADER_BYTES + bytes(5000))) == ([], [], HEADER_BYTES, True)
    assert found(scan(b"")) == ([], [], HEADER_BYTES, True)


def test_bodies_are_handed_out_whole() -> None:
    laid = log()
    for chunk_bytes in CHUNKS:
        reader = LogReader(reader_of(laid.data), len(laid.data), chunk_bytes)
        bodies = [reader.body(Span(start, end)) for start, end in laid.spans]
        assert bodies == [laid.data[start + 4 : end - 4] for start, end in laid.spans]


@pytest.mark.parametrize("aligned", [True, False])
def test_entries_of_other_writers_need_no_alignment(aligned: bool) -> None:
    laid = lay([entry(n, b"x" * n, aligned=aligned) for n in range(40)], start=38)
    reader = LogReader(reader_of(laid.data), len(laid.data))
    assert [(s.start, s.end) for s in reader.scan(38, stride=1).entries] == laid.spans


def test_entries_of_unknown_types_are_entries() -> None:
    laid = lay([entry(0, b"a"), entry(1, b"b", entry_type=7), entry(2, b"c")])
    assert found(scan(laid.data))[0] == laid.spans


# --- entries of one length -----------------------------------------------------------------------------------------------------


def runs(*counts: tuple[int, int]) -> Laid:
    """Numbers and lengths of entries, one kind after the other."""
    random = Random(str(counts))
    sizes = [size for count, size in counts for _ in range(count)]
    return lay([entry(n, random.randbytes(size)) for n, size in enumerate(sizes)], tail=bytes(200))


@pytest.mark.parametrize("stride", [64, 1])
def test_runs_of_entries_of_one_length_are_found_between_others(stride: int) -> None:
    laid = runs((3, 100), (40, 70), (1, 900), (7, 70), (25, 300), (200, 5), (9, 64))
    for chunk_bytes in (500, 5000, 1 << 20):
        assert found(scan(laid.data, chunk_bytes=chunk_bytes, stride=stride)) == (
            laid.spans,
            [],
            laid.spans[-1][1],
            True,
        )


@pytest.mark.parametrize("bit", [1, 0x80])
def test_any_flipped_bit_of_a_run_costs_one_entry(bit: int) -> None:
    laid = runs((12, 30))
    for at in range(HEADER_BYTES, laid.spans[-1][1]):
        hit = next(span for span in laid.spans if span[0] <= at < span[1])
        entries, damaged, _, _ = found(scan(flipped(laid.data, at, bit), last_sequence=-1))
        assert entries == [span for span in laid.spans if span != hit], at
        assert damaged == ([hit] if hit != laid.spans[-1] else []), at


def test_damage_of_several_entries_of_a_run_costs_just_those() -> None:
    laid, random = runs((60, 30)), Random(5)
    for _ in range(200):
        hit = sorted(random.sample(laid.spans[:-1], random.randint(2, 6)))
        data = laid.data
        for start, end in hit:
            data = flipped(data, random.randrange(start + 4, end), random.randrange(1, 256))
        assert found(scan(data, last_sequence=-1))[0] == [span for span in laid.spans if span not in hit]


# --- chunks --------------------------------------------------------------------------------------------------------------------


def damaged_logs() -> list[bytes]:
    laid, random = log(tail=bytes(3000)), Random(1)
    logs = [laid.data, laid.data[:-4000], laid.data[: laid.spans[3][1] - 7]]
    logs += [flipped(laid.data, random.randrange(HEADER_BYTES, laid.spans[-1][1])) for _ in range(6)]
    start, end = laid.spans[5]
    return [*logs, laid.data[:start] + random.randbytes(end - start) + laid.data[end:]]


@pytest.mark.parametrize("number", range(10))
def test_chunks_of_any_size_find_the_same(number: int) -> None:
    data = damaged_logs()[number]
    expected = found(scan(data))
    assert [found(scan(data, chunk_bytes=size)) for size in CHUNKS] == [expected] * len(CHUNKS)


def test_reads_stay_within_a_chunk_or_an_entry() -> None:
    laid, lengths = log(), []

    def read(length: int, offset: int) -> bytes:
        lengths.append(length)
        return laid.data[offset : offset + length]

    LogReader(read, len(laid.data), 512).scan(HEADER_BYTES, stride=64)
    assert max(lengths) <= max(end - start for start, end in laid.spans)
    assert sum(lengths) < 2 * len(laid.data)
    lengths.clear()
    LogReader(read, len(laid.data), 64).scan(HEADER_BYTES, stride=64)
    assert max(lengths) <= 16 * 64, "an entry much larger than a chunk is read in pieces"


@pytest.mark.parametrize("number", range(10))
def test_each_entry_is_handed_out_once_and_whole(number: int) -> None:
    data = damaged_logs()[number]
    for size in CHUNKS:
        taken: list[tuple[int, bytes]] = []

        def take(memory: memoryview, offset: int, ends: list[int], taken: list[tuple[int, bytes]] = taken) -> None:
            for start, end in zip([0, *ends], ends, strict=False):
                taken.append((offset + start, bytes(memory[start:end])))

        result = LogReader(reader_of(data), len(data), size).scan(HEADER_BYTES, stride=64, take=take)
        assert taken == [(span.start, data[span.start : span.end]) for span in result.entries]


# --- damage in the middle --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("which", range(len(SIZES) - 1))
def test_a_damaged_entry_costs_only_itself(which: int) -> None:
    laid = log(tail=bytes(500))
    start, end = laid.spans[which]
    for at in {start + 4, start + 13, start + 28, end - 5, end - 1}:
        entries, damaged, log_end, marked = found(scan(flipped(laid.data, at), last_sequence=9))
        assert entries == [*laid.spans[:which], *laid.spans[which + 1 :]]
        assert damaged == [(start, end)]
        assert (log_end, marked) == (laid.spans[-1][1], True)


@pytest.mark.parametrize("which", range(len(SIZES) - 1))
def test_a_damaged_length_costs_only_its_entry(which: int) -> None:
    laid = log(tail=bytes(100_000))
    start, end = laid.spans[which]
    for bit in range(32):
        data = flipped(laid.data, start + bit // 8, 1 << bit % 8)
        entries, damaged, _, _ = found(scan(data, last_sequence=9))
        assert entries == [*laid.spans[:which], *laid.spans[which + 1 :]], f"bit {bit} of the length"
        assert damaged == [(start, end)]


def test_a_length_that_points_behind_whole_entries_does_not_cost_them() -> None:
    """Two entries of 1,024 bytes: one flipped bit of the first length lets it end where the second one does."""
    laid = lay([entry(n, bytes(1024 - 33)) for n in range(4)], tail=bytes(64))
    assert laid.spans[1] == (HEADER_BYTES + 1024, HEADER_BYTES + 2048)
    data = flipped(laid.data, laid.spans[1][0] + 1, 0x04)
    assert int.from_bytes(data[laid.spans[1][0] :][:4], "little") == 2040
    assert found(scan(data))[0] == [laid.spans[0], *laid.spans[2:]]


def test_a_lost_stretch_of_several_entries_is_one_span() -> None:
    laid = log(tail=bytes(500))
    start, end = laid.spans[2][0], laid.spans[4][1]
    for filler in (bytes(end - start), Random(3).randbytes(end - start), b"\xff" * (end - start)):
        entries, damaged, _, _ = found(scan(laid.data[:start] + filler + laid.data[end:]))
        assert entries == [*laid.spans[:2], *laid.spans[5:]]
        assert damaged == [(start, end)]


def test_damage_at_the_very_start_is_stepped_over() -> None:
    laid = log(tail=bytes(500))
    start, end = laid.spans[0][0], laid.spans[1][1]
    entries, damaged, _, _ = found(scan(laid.data[:start] + bytes(end - start) + laid.data[end:]))
    assert (entries, damaged) == (laid.spans[2:], [(start, end)])


def test_unaligned_entries_are_found_again_too() -> None:
    laid = lay([entry(n, Random(n).randbytes(100 + n), aligned=False) for n in range(9)])
    start, end = laid.spans[3]
    entries, damaged, _, _ = found(scan(laid.data[:start] + b"\xee" * (end - start) + laid.data[end:], stride=1))
    assert (entries, damaged) == ([*laid.spans[:3], *laid.spans[4:]], [(start, end)])


def test_an_entry_inside_a_damaged_payload_is_not_taken_for_one_of_the_log() -> None:
    """A producer may store logs of ours as data, aligned and all."""
    stored = b"".join(entry(n, b"inner") for n in range(500, 503))
    outer = entry(11, bytes(64 - 29) + stored)
    laid = lay([entry(10, b"a"), outer, entry(12, b"b"), entry(13, b"c")], tail=bytes(64))
    start, end = laid.spans[1]
    for at in (start + 30, end - 1):
        entries, damaged, _, _ = found(scan(flipped(laid.data, at)))
        assert (entries, damaged) == ([laid.spans[0], *laid.spans[2:]], [(start, end)])
    for at in (start, start + 1):  # the length: now it has to be looked for, and the sequences tell
        assert found(scan(flipped(laid.data, at)))[0] == [laid.spans[0], *laid.spans[2:]]


def test_columns_of_small_numbers_do_not_look_like_entries() -> None:
    numbers = b"".join(number.to_bytes(8, "little") for number in range(30, 30 + 200_000))
    laid = lay([entry(0, b"a"), entry(1, numbers), entry(2, b"b")], tail=bytes(64))
    data = flipped(laid.data, laid.spans[1][0] + 2, 0x10)
    calls = 0

    def read(length: int, offset: int) -> bytes:
        nonlocal calls
        calls += 1
        return data[offset : offset + length]

    assert found(LogReader(read, len(data)).scan(HEADER_BYTES, stride=64))[0] == [laid.spans[0], laid.spans[2]]
    assert calls < 30, "nothing is read again and again"


# --- torn ends -----------------------------------------------------------------------------------------------------------------


def test_a_log_cut_anywhere_ends_behind_its_last_whole_entry() -> None:
    laid = log((0, 100, 30, 400))
    for cut in range(HEADER_BYTES, len(laid.data)):
        whole = [span for span in laid.spans if span[1] <= cut]
        entries, damaged, end, _ = found(scan(laid.data[:cut]))
        assert (entries, damaged) == (whole, [])
        assert end == (whole[-1][1] if whole else HEADER_BYTES)


@pytest.mark.parametrize("kept", range(0, 3000, 171))
def test_a_torn_entry_in_a_preallocated_file_is_no_damage(kept: int) -> None:
    laid = log()
    start, end = laid.spans[3]
    torn = laid.data[:start] + laid.data[start : start + kept].ljust(end - start, b"\0") + bytes(20_000)
    entries, damaged, log_end, marked = found(scan(torn))
    assert (entries, damaged, log_end) == (laid.spans[:3], [], start)
    assert marked == (not any(torn[start : start + 4]))


def test_rubbish_behind_the_last_entry_is_told_from_an_end() -> None:
    laid = log()
    assert not scan(laid.data + Random(7).randbytes(5000)).end_marked
    assert scan(laid.data + bytes(4) + Random(7).randbytes(5000)).end_marked


def test_a_length_beyond_every_limit_is_never_believed() -> None:
    laid = log(tail=bytes(64))
    for length in (1, 24, 1 << 29, (1 << 32) - 1):
        data = laid.data[: laid.spans[2][0]] + length.to_bytes(4, "little") + laid.data[laid.spans[2][0] + 4 :]
        assert found(scan(data))[0] == [*laid.spans[:2], *laid.spans[3:]]


@pytest.mark.parametrize("chunk_bytes", [64, 1000, 1 << 20])
@pytest.mark.parametrize("missing", [1, 5, 64, 700, 4096, 9000])
def test_a_file_that_is_shorter_than_it_was_ends_behind_its_last_whole_entry(missing: int, chunk_bytes: int) -> None:
    laid = log()
    kept = laid.data[:-missing]
    result = LogReader(reader_of(kept), len(laid.data), chunk_bytes).scan(HEADER_BYTES, stride=64)
    entries, damaged, end, _ = found(result)
    assert (entries, damaged) == ([span for span in laid.spans if span[1] <= len(kept)], [])
    assert end == entries[-1][1]


def test_a_read_that_fails_leaves_nothing_wrong_behind() -> None:
    data = bytes(range(256)) * 1024
    failing = [False]

    def read(length: int, offset: int) -> bytes:
        if failing[0] and offset >= 100_000:
            raise OSError("once")
        return data[offset : offset + length]

    reader = LogReader(read, len(data), 90_000)
    assert reader.bytes_at(5, 10) == data[5:15]
    failing[0] = True
    with pytest.raises(OSError, match="once"):
        reader.bytes_at(80_001, 90_000)
    failing[0] = False
    assert reader.bytes_at(5, 10) == data[5:15]
    assert reader.bytes_at(80_001, 90_000) == data[80_001:170_001]
