"""One flipped bit in a file that the engine wrote: never believed, and it costs at most the bundles that it is in.

- Progress: the codec refuses the file.
- Segment, sealed in place or compacted: scrub refuses the file, and what is rebuilt from it holds every bundle but those that
  the bit is in, all of them as they were pushed.
- Log: recovery brings back every bundle but the one that the bit is in.

    python -m tests.fuzz.bitflips [FLIPS] [SEED]        about so many; ends with one line of JSON
    python -m tests.fuzz.bitflips --part K/N            every N-th bit of every file, from the K-th on
"""

from __future__ import annotations

import functools
import logging
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from random import Random

import msgspec
import pyarrow as pa

from quiver_actors.base.units import MIB
from quiver_actors.errors import FormatError
from quiver_actors.store.jobs.rebuild import Hints, rebuild
from quiver_actors.store.segment.check import run_to_end, verify_steps
from quiver_actors.store.segment.outline import read_outline
from quiver_actors.store.segment.reader import SegmentReader
from quiver_actors.store.subscriber.progress import decode_progress
from quiver_actors.store.wal import layout
from tests.disks.crashes import CrashMode
from tests.disks.simulated import SimDisk
from tests.fuzz import corpus
from tests.fuzz.corpus import reader_of
from tests.support.engine_driver import EngineDriver, topic_settings

_KINDS = 4
_LOG_SHARE = 8
_LOG_PATH = f"{corpus.DIRECTORY}/wal/quiver.wal"
_LOG_SETTINGS = topic_settings(segment_target_size_bytes=2 * MIB)
"""Recovery looks for more entries in all that is preallocated: two of its chunks test the same as thirty-two."""


@dataclass
class FlipTally:
    """Counted while it was done. A flip is harmless if all is as it was: it hit bytes that mean nothing."""

    flips: int = 0
    detected: int = 0
    harmless: int = 0
    bundles_lost: int = 0
    flips_that_cost_more: int = 0
    """More was lost than the bundles that the bit is in."""
    failures: list[str] = field(default_factory=list)
    """A flip that was believed: wrong contents, or none of it noticed."""


def flipped(content: bytes, bit: int) -> bytes:
    changed = bytearray(content)
    changed[bit >> 3] ^= 1 << (bit & 7)
    return bytes(changed)


Choice = Callable[[int], Iterable[int]]
"""Which bits of a file to flip, of so many."""


def every(bit_count: int) -> range:
    return range(bit_count)


def part(number: int, parts: int) -> Choice:
    """Every so-many-th bit; all parts together are all bits."""
    return lambda bit_count: range(number, bit_count, parts)


def sample(size: int, seed: int) -> Choice:
    """Return that many flips, drawn at random; all flips if there are not as many."""
    return lambda bit_count: sorted(Random(seed).sample(range(bit_count), min(size, bit_count)))


def run(choice: Choice, choice_of_log: Choice | None = None) -> dict[str, FlipTally]:
    """Every kind of file; a flip in a log takes an opening of a store, so there may be fewer."""
    in_place, compacted = corpus.segment_specimens()
    return {
        "progress": flip_progress(choice),
        "segment_in_place": flip_segment(in_place.content, choice),
        "segment_compacted": flip_segment(compacted.content, choice),
        "log": flip_log(choice_of_log or choice),
    }


def run_sample(size: int, seed: int = 0) -> dict[str, FlipTally]:
    """About so many in each kind of file."""
    return run(sample(size, seed), sample(size // _LOG_SHARE, seed))


def flip_progress(choice: Choice = every) -> FlipTally:
    tally = FlipTally()
    for specimen in corpus.progress_specimens():
        for bit in choice(len(specimen.content) * 8):
            tally.flips += 1
            try:
                decode_progress(flipped(specimen.content, bit))
                tally.failures.append(f"progress of {len(specimen.content)} bytes, bit {bit}: not detected")
            except FormatError:
                tally.detected += 1
    return tally


# --- segments ------------------------------------------------------------------------------------------------------------


def flip_segment(content: bytes, choice: Choice = every) -> FlipTally:
    tally = FlipTally()
    touched = _touched_in_segment(content)
    for bit in choice(len(content) * 8):
        damaged = flipped(content, bit)
        tally.flips += 1
        try:
            run_to_end(verify_steps(reader_of(damaged), len(damaged)))
            tally.failures.append(f"segment, bit {bit}: not detected")
        except FormatError:
            tally.detected += 1
        lost, wrong = _lost_after_rebuild(damaged)
        _judge(tally, f"segment, bit {bit}", lost, wrong, touched(bit >> 3))
    return tally


def _judge(tally: FlipTally, what: str, lost: set[int], wrong: list[int], touched: set[int]) -> None:
    tally.bundles_lost += len(lost)
    tally.flips_that_cost_more += not lost <= touched
    if wrong:
        tally.failures.append(f"{what}: bundles {wrong} are not what was pushed")


def _lost_after_rebuild(damaged: bytes) -> tuple[set[int], list[int]]:
    """Bundles that are gone, and bundles that are wrong, after the segment has been rebuilt."""
    disk = SimDisk()
    file = disk.create("rebuilt")
    rebuilt = rebuild(reader_of(damaged), len(damaged), file, Hints(0, layout.DEFAULT_CFG_HASH))
    if rebuilt is None:
        return set(range(len(_expected()))), []
    content = file.read(file.size(), 0)
    run_to_end(verify_steps(reader_of(content), len(content)))
    found = _contents_by_sequence([SegmentReader(content)])
    return _compare(found)


@functools.cache
def _expected() -> dict[int, dict[int, list[object]]]:
    """Contents by sequence and slot."""
    return {number: _plain(bundle) for number, bundle in enumerate(corpus.small_bundles())}


def _plain(bundle: dict[int, pa.RecordBatch]) -> dict[int, list[object]]:
    return {slot_id: [str(batch.schema), batch.to_pylist()] for slot_id, batch in bundle.items()}


def _contents_by_sequence(readers: Iterable[SegmentReader]) -> dict[int, dict[int, list[object]]]:
    found: dict[int, dict[int, list[object]]] = {}
    for reader in readers:
        for index in range(reader.bundle_count):
            sequence, bundle = reader.sequence(index), reader.bundle(index)
            if bundle and sequence is not None:
                found[sequence] = _plain(bundle)
    return found


def _compare(found: dict[int, dict[int, list[object]]]) -> tuple[set[int], list[int]]:
    expected = _expected()
    wrong = [sequence for sequence, content in found.items() if expected.get(sequence) != content]
    return expected.keys() - found.keys(), wrong


def _touched_in_segment(content: bytes) -> Callable[[int], set[int]]:
    """Which bundles a byte belongs to: to its log entry, or to its batch, or to the dictionaries and the schema in front of it."""
    if content[:10] == layout.WAL_MAGIC:
        return _touched_in_log(content)
    outline = read_outline(reader_of(content), len(content))
    owners: list[tuple[int, int, set[int]]] = []
    bundle_of_ref = [bundle for bundle, count in enumerate(outline.columns.slot_counts) for _ in range(count)]
    for stream_id, stream in enumerate(outline.streams):
        members = {
            (int(chunk), bundle)
            for (_, owner, chunk), bundle in zip(outline.columns.refs.tolist(), bundle_of_ref, strict=True)
            if owner == stream_id
        }
        owners.append((stream.byte_offset, int(stream.batches[0, 0]), {bundle for _, bundle in members}))
        for chunk, bundle in members:
            offset, metadata_bytes, body_bytes = stream.batches[chunk].tolist()
            owners.append((offset, offset + metadata_bytes + body_bytes, {bundle}))
    return lambda byte: set().union(*(bundles for start, end, bundles in owners if start <= byte < end))


def _touched_in_log(content: bytes) -> Callable[[int], set[int]]:
    ends = corpus.entry_ends(content, layout.HEADER_BYTES)
    starts = [layout.HEADER_BYTES, *ends]

    def touched(byte: int) -> set[int]:
        return {number for number, end in enumerate(ends) if starts[number] <= byte < end}

    return touched


# --- logs ----------------------------------------------------------------------------------------------------------------


@functools.cache
def _crashed_store() -> SimDisk:
    """Synced and never sealed."""
    disk = corpus.store(corpus.small_bundles(), seal=False, settings=_LOG_SETTINGS).disk
    assert isinstance(disk, SimDisk)
    return disk.crash(CrashMode.DROP)


def flip_log(choice: Choice = every) -> FlipTally:
    """Bits of the written part of the log; behind it stand preallocated zeroes."""
    tally = FlipTally()
    file = _crashed_store().open_read(_LOG_PATH)
    whole = file.read(file.size(), 0)
    written = whole[: corpus.entry_ends(whole, layout.HEADER_BYTES)[-1]]
    touched = _touched_in_log(written)
    for bit in choice(len(written) * 8):
        tally.flips += 1
        lost, wrong, noticed = _recover_flipped(bit, whole)
        _judge(tally, f"log, bit {bit}", lost, wrong, touched(bit >> 3))
        if lost or noticed:
            tally.detected += 1
        elif _means_nothing(bit >> 3):
            tally.harmless += 1
        else:
            tally.failures.append(f"log, bit {bit}: not detected")
    return tally


def _means_nothing(byte: int) -> bool:
    """Zeroes between the checked part of the header and the first entry."""
    return layout.HEADER_CRC_OFFSET + layout.ENTRY_CRC.size <= byte < layout.HEADER_BYTES


def _recover_flipped(bit: int, whole: bytes) -> tuple[set[int], list[int], bool]:
    """Bundles that are gone or wrong after recovery, and whether recovery has noticed anything."""
    disk = _crashed_store().copy()
    file = disk.open_write(_LOG_PATH)
    file.write([bytes([whole[bit >> 3] ^ 1 << (bit & 7)])], bit >> 3)
    file.fsync()
    file.close()
    driver = EngineDriver(disk, _LOG_SETTINGS, corpus.DIRECTORY)
    notes = list(driver.engine.recovery_notes)
    driver.settle()
    readers = [driver.read(info.segment_seq) for info in driver.engine.segments()]
    lost, wrong = _compare(_contents_by_sequence(readers))
    return lost, wrong, any("damage" in note or "quarantine" in note for note in notes)


def main() -> int:
    logging.disable(logging.CRITICAL)
    match sys.argv[1:]:
        case ["--part", which]:
            number, _, parts = which.partition("/")
            tallies = run(part(int(number), int(parts)))
        case given:
            size, seed = (int(given[n]) if len(given) > n else default for n, default in enumerate((2_000, 0)))
            tallies = run_sample(size // _KINDS, seed)
    print(msgspec.json.encode(tallies).decode())
    return any(tally.failures for tally in tallies.values())


__all__ = ["FlipTally", "every", "flip_log", "flip_progress", "flip_segment", "flipped", "run", "run_sample"]

if __name__ == "__main__":
    sys.exit(main())
