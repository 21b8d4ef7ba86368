"""The schemas of a topic are known without a look at its segments; the file that keeps them may be lost, damaged or old at any time."""

from __future__ import annotations

import contextlib
from typing import Any

import msgspec
import pyarrow as pa
import pytest

from quiver_actors.base.protocol.messages import SegmentInfo
from quiver_actors.base.units import SECOND_NS
from quiver_actors.store.disk.protocol import Disk, read_whole, write_atomically
from quiver_actors.store.engine.summaries import SAVE_CHANGES_MIN
from quiver_actors.store.files.paths import EnginePaths
from quiver_actors.store.files.summaries import Summary, decode_summaries, encode_summaries, identity_of
from quiver_actors.store.jobs.upkeep import COMPACTION_AGE_NS
from tests.disks.crashes import CrashMode
from tests.disks.faulty import FaultyDisk, SimulatedCrash
from tests.disks.simulated import SimDisk
from tests.support.engine_driver import EngineDriver, topic_settings

PATHS = EnginePaths("default/core_0")
WORDS = pa.record_batch({"word": pa.array(["a", "b", "a"]).dictionary_encode()})
NUMBERS = pa.record_batch({"number": pa.array([1])})
Found = set[tuple[int, str, int, tuple[int, ...]]]


def schemas(driver: EngineDriver) -> Found:
    """Slot, columns, number of sealed segments and open segments of each schema."""
    return {
        (info.slot_id, str(_schema(info.message)), info.segment_count, info.open_segments)
        for info in driver.engine.owed.schemas(0).schemas
    }


def _schema(message: bytes) -> pa.Schema:
    return pa.ipc.read_schema(pa.py_buffer(message))


def unknown(driver: EngineDriver) -> tuple[int, ...]:
    return driver.engine.owed.schemas(0).unknown


def three_segments(disk: Disk, **settings: Any) -> EngineDriver:
    driver = EngineDriver(disk, topic_settings(**settings))
    driver.engine.registrations.register("s", "earliest")
    for bundle in ({0: NUMBERS}, {0: NUMBERS, 3: WORDS}, {3: WORDS}):
        driver.push(bundle)
        driver.seal()
    return driver


BOTH = {(0, "number: int64", 2, ()), (3, str(WORDS.schema), 2, ())}


def test_a_segment_brings_its_schemas_along_and_takes_them_with_it(disk: Disk) -> None:
    driver = EngineDriver(disk)
    driver.engine.registrations.register("s", "earliest")
    assert schemas(driver) == set()
    driver.push({0: NUMBERS})
    assert schemas(driver) == {(0, "number: int64", 0, (0,))}
    driver.seal()
    driver.push({3: WORDS}, {0: NUMBERS})
    assert schemas(driver) == {(0, "number: int64", 1, (1,)), (3, str(WORDS.schema), 0, (1,))}
    driver.seal()
    assert schemas(driver) == {(0, "number: int64", 2, ()), (3, str(WORDS.schema), 1, ())}
    for grant in iter(lambda: driver.claim("s", "owner", 1), []):
        driver.resolve("s", "owner", grant[0].segment_seq, "ack", grant[0].indexes)
    driver.flush_progress()
    assert driver.engine.segments() == []
    assert schemas(driver) == set()


def test_they_come_in_the_order_of_their_segments(disk: Disk) -> None:
    driver = EngineDriver(disk)
    names = [f"c{number}" for number in range(30)]
    for name in names[:25]:
        driver.push({0: pa.record_batch({name: [1]})})
        driver.seal()
    driver.push(*({0: pa.record_batch({name: [1]})} for name in names[25:]))
    listed = [_schema(info.message).names[0] for info in driver.engine.owed.schemas(0).schemas]
    assert listed == names
    driver.drain_and_close()
    driver = EngineDriver(disk)
    assert [_schema(info.message).names[0] for info in driver.engine.owed.schemas(0).schemas] == names


def test_a_start_knows_them_from_the_file_before_anything_is_checked(disk: Disk) -> None:
    three_segments(disk).drain_and_close()
    driver = EngineDriver(disk)
    assert [info.is_checked for info in driver.engine.segments()] == [False] * 3
    assert (schemas(driver), unknown(driver)) == (BOTH, ())


@pytest.mark.parametrize("content", [None, b"", b"QUIVSUM\0rubbish"], ids=["missing", "empty", "rubbish"])
def test_without_the_file_segments_are_unknown_until_they_are_looked_at(disk: Disk, content: bytes | None) -> None:
    three_segments(disk).drain_and_close()
    disk.unlink(PATHS.summaries)
    if content is not None:
        write_atomically(disk, PATHS.summaries, content)
    driver = EngineDriver(disk)
    assert (schemas(driver), unknown(driver)) == (set(), (0, 1, 2))
    driver.settle()
    assert (schemas(driver), unknown(driver)) == (BOTH, ())
    driver.drain_and_close()
    assert decode_summaries(read_whole(disk, PATHS.summaries, 1 << 20)).keys() == {0, 1, 2}


def test_what_the_file_says_of_another_segment_of_that_number_is_not_believed(disk: Disk) -> None:
    three_segments(disk).drain_and_close()
    saved = decode_summaries(read_whole(disk, PATHS.summaries, 1 << 20))
    wrong = Summary(b"8 others", saved[2].streams)
    write_atomically(disk, PATHS.summaries, encode_summaries({**saved, 0: wrong, 9: Summary(b"8 others", ())}))
    driver = EngineDriver(disk)
    assert unknown(driver) == (0,)
    driver.settle()
    assert (schemas(driver), unknown(driver)) == (BOTH, ())


def test_the_identity_of_a_segment_says_all_of_it_but_what_was_found_of_it() -> None:
    info = SegmentInfo(1, 2, 3, 4, 5, 6, True, 7, 8)
    assert identity_of(msgspec.structs.replace(info, is_checked=False, lost_count=1)) == identity_of(info)
    others = {
        identity_of(msgspec.structs.replace(info, **{name: 99}))
        for name in SegmentInfo.__struct_fields__
        if name not in ("is_checked", "lost_count")
    }
    assert len(others) == 8


def test_a_segment_that_is_compacted_is_looked_at_again(disk: Disk) -> None:
    driver = EngineDriver(disk)
    driver.engine.registrations.register("s", "earliest")
    driver.push_numbered(0, 1000)
    driver.settle()
    driver.seal()
    size_bytes = driver.engine.segments()[0].size_bytes
    before = schemas(driver)
    driver.run_for(COMPACTION_AGE_NS + 10 * SECOND_NS)
    assert driver.engine.segments()[0].size_bytes < size_bytes
    assert (schemas(driver), unknown(driver)) == (before, ())
    driver.drain_and_close()
    assert unknown(EngineDriver(disk)) == ()


def test_the_file_is_written_after_many_seals_and_not_with_each(disk: Disk) -> None:
    driver = EngineDriver(disk)
    driver.engine.registrations.register("s", "earliest")
    for number in range(SAVE_CHANGES_MIN):
        assert not disk.exists(PATHS.summaries)
        driver.push_numbered(number)
        driver.seal()
    assert len(decode_summaries(read_whole(disk, PATHS.summaries, 1 << 20))) == SAVE_CHANGES_MIN


def test_a_file_that_cannot_be_written_costs_nothing_but_a_look() -> None:
    inner = SimDisk()
    three_segments(inner).drain_and_close()
    inner.unlink(PATHS.summaries)
    faulty = FaultyDisk(inner)
    driver = EngineDriver(faulty)
    faulty.fail("create", 1, 28, path_part="quiver.summaries")
    driver.settle()
    driver.drain_and_close()
    assert not inner.exists(PATHS.summaries)
    driver = EngineDriver(inner)
    driver.settle()
    assert schemas(driver) == BOTH


def test_a_crash_at_any_call_leaves_bundles_and_schemas_as_they_are() -> None:
    """The file is made while segments come, are looked at, and go; nothing that it says or lacks is evidence for anything."""
    crashes = 0
    for calls in range(1, 400):
        inner = SimDisk()
        three_segments(inner).drain_and_close()
        if calls % 2:
            inner.unlink(PATHS.summaries)
        disk = FaultyDisk(inner)
        disk.crash_at(calls)
        with contextlib.suppress(SimulatedCrash):
            driver = EngineDriver(disk)
            driver.settle()
            driver.push({0: NUMBERS})
            driver.seal()
            driver.drain_and_close()
        for mode in (CrashMode.KEEP, CrashMode.DROP, CrashMode.TEAR_SECTOR, CrashMode.GARBLE):
            found = EngineDriver(inner.crash(mode, calls))
            found.settle()
            assert unknown(found) == ()
            assert {info.segment_seq for info in found.engine.segments()} >= {0, 1, 2}
            assert {(slot, text) for slot, text, _, _ in schemas(found)} == {(slot, text) for slot, text, _, _ in BOTH}
            assert sum(count for _, _, count, _ in schemas(found)) - len(found.engine.segments()) == 1
        crashes += disk.mutating_count >= calls
        if disk.mutating_count < calls:
            break
    assert crashes > 20
