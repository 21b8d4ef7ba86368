"""Statistics of segments are made in the background, kept with the summaries, and never of values that are not proven."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pyarrow as pa

from quiver_actors.base.units import SECOND_NS
from quiver_actors.store.disk.protocol import Disk, write_atomically
from quiver_actors.store.engine.summaries import STATISTICS_AGE_NS, STATISTICS_REST
from quiver_actors.store.files.paths import EnginePaths
from quiver_actors.store.jobs.statistics import StatisticsJob
from quiver_actors.store.segment.statistics import decode_statistics
from tests.disks.crashes import CrashMode
from tests.disks.faulty import FaultyDisk, SimulatedCrash
from tests.disks.simulated import SimDisk
from tests.support.engine_driver import EngineDriver, topic_settings
from tests.unit.store.segment.logfile import LogFile

PATHS = EnginePaths("default/core_0")


def words(*found: str) -> pa.RecordBatch:
    return pa.record_batch({"word": pa.array(found).dictionary_encode(), "n": pa.array(range(len(found)))})


def sealed(disk: Disk, statistics: str = "auto") -> EngineDriver:
    """A segment with two bundles of words, each with its own dictionary, and one of numbers."""
    driver = EngineDriver(disk, topic_settings(segment_statistics=statistics))
    driver.engine.registrations.register("s", "earliest")
    driver.push({0: words("b", "c")}, {0: words("a")}, {3: pa.record_batch({"x": [7, None]})})
    driver.seal()
    return driver


def shown(driver: EngineDriver, segment_seq: int = 0) -> dict[int, dict[str, tuple[int, object, object]]] | None:
    """Nulls, smallest and largest value by slot and column; None: there are no statistics."""
    summary = driver.engine._parts.sealed_segments.summaries.of(segment_seq)
    if summary is None or not summary.statistics:
        return None
    schemas = [pa.ipc.read_schema(pa.py_buffer(schema.message)) for schema, _ in summary.streams]
    found: dict[int, dict[str, tuple[int, object, object]]] = {}
    decoded = decode_statistics(summary.statistics, schemas)
    for (schema, _), columns in zip(summary.streams, decoded, strict=True):
        assert columns is not None
        for name, (nulls, smallest, largest) in columns.items():
            if smallest is None or largest is None:
                continue
            found.setdefault(schema.slot_id, {})[name] = (nulls, smallest.as_py(), largest.as_py())
    return found


WANTED = {0: {"word": (0, "a", "c"), "n": (0, 0, 1)}, 3: {"x": (1, 7, 7)}}


def test_they_are_made_once_a_segment_is_old_enough_and_kept_over_a_restart(disk: Disk) -> None:
    driver = sealed(disk)
    driver.run_for(STATISTICS_AGE_NS - SECOND_NS)
    assert shown(driver) is None
    driver.run_for(2 * SECOND_NS)
    assert shown(driver) == WANTED
    driver.drain_and_close()
    assert shown(EngineDriver(disk)) == WANTED


def test_a_topic_says_which_columns_have_bounds(disk: Disk) -> None:
    settings = topic_settings(segment_statistics_columns=("x",), event_time="n")
    driver = EngineDriver(disk, settings)
    driver.engine.registrations.register("s", "earliest")
    driver.push({0: words("b", "c")}, {3: pa.record_batch({"x": [7, None]})})
    driver.seal()
    driver.run_for(2 * STATISTICS_AGE_NS)
    assert shown(driver) == {0: {"n": (0, 0, 1)}, 3: {"x": (1, 7, 7)}}
    driver.engine.change_settings(topic_settings(segment_statistics_columns=("word",)))
    driver.push({0: words("a", "d")})
    driver.seal()
    driver.run_for(2 * STATISTICS_AGE_NS)
    assert shown(driver) == {0: {"n": (0, 0, 1)}, 3: {"x": (1, 7, 7)}}, "those that are made stay"
    assert shown(driver, 1) == {0: {"word": (0, "a", "d")}}


def test_they_are_made_anew_where_the_file_is_lost(disk: Disk) -> None:
    driver = sealed(disk)
    driver.drain_and_close()
    disk.unlink(PATHS.summaries)
    driver = EngineDriver(disk)
    driver.run_for(2 * STATISTICS_AGE_NS)
    assert shown(driver) == WANTED


def test_a_setting_turns_them_off_and_on_again_live(disk: Disk) -> None:
    driver = sealed(disk, "off")
    driver.run_for(2 * STATISTICS_AGE_NS)
    assert shown(driver) is None
    driver.engine.change_settings(topic_settings(segment_statistics="auto"))
    driver.run_for(2 * STATISTICS_AGE_NS)
    assert shown(driver) == WANTED


def test_they_rest_many_times_as_long_as_they_work(disk: Disk) -> None:
    driver = sealed(disk)
    driver.push({0: words("z")})
    driver.seal()
    driver.clock.advance(STATISTICS_AGE_NS)
    spent_ns = 0
    while (job := driver.engine.next_background()) is not None:
        job.run()
        spent_ns += job.took_ns if isinstance(job, StatisticsJob) else 0
        driver.engine.finish(job)
    assert shown(driver) == WANTED
    assert shown(driver, 1) is None
    deadline_ns = driver.engine._parts.sealed_segments.summaries.statistics_due_ns()
    assert deadline_ns == driver.clock.now_ns + STATISTICS_REST * spent_ns
    driver.run_for(STATISTICS_REST * spent_ns + SECOND_NS)
    assert shown(driver, 1) == {0: {"word": (0, "z", "z"), "n": (0, 0, 0)}}


def test_a_damaged_segment_has_none(disk: Disk, tmp_path: Path) -> None:
    driver = sealed(disk)
    path = tmp_path / PATHS.segment(0)
    path.chmod(0o600)
    with path.open("r+b") as file:
        file.seek(700)
        value = file.read(1)[0]
        file.seek(700)
        file.write(bytes([value ^ 1]))
    driver.run_for(2 * STATISTICS_AGE_NS)
    assert shown(driver) is None


def test_a_segment_that_goes_while_they_are_made_takes_them_along(disk: Disk) -> None:
    driver = sealed(disk)
    driver.clock.advance(STATISTICS_AGE_NS)
    job = driver.engine.next_background()
    assert isinstance(job, StatisticsJob)
    while not job.is_done:
        job.run()
    driver.engine._parts.sealed_segments.segments.pop(0)
    driver.engine.finish(job)
    assert shown(driver) is None
    assert driver.engine.owed.schemas(0).schemas == []


def test_a_crash_at_any_call_leaves_right_ones_or_none() -> None:
    for calls in range(1, 400):
        inner = SimDisk()
        sealed(inner).drain_and_close()
        if calls % 2:
            inner.unlink(PATHS.summaries)
        disk = FaultyDisk(inner)
        disk.crash_at(calls)
        with contextlib.suppress(SimulatedCrash):
            driver = EngineDriver(disk)
            driver.run_for(2 * STATISTICS_AGE_NS)
            driver.drain_and_close()
        for mode in (CrashMode.KEEP, CrashMode.DROP, CrashMode.GARBLE):
            found = EngineDriver(inner.crash(mode, calls))
            assert shown(found) in (None, WANTED)
            found.run_for(2 * STATISTICS_AGE_NS)
            assert shown(found) == WANTED
        if disk.mutating_count < calls:
            return
    raise AssertionError("it does not end")


def test_what_is_compressed_is_not_unpacked(disk: Disk) -> None:
    log = LogFile()
    log.push({5: pa.record_batch({"n": range(5000)})}, options=pa.ipc.IpcWriteOptions(compression="zstd"))
    log.push({6: pa.record_batch({"n": [1, 2]})})
    for name in ("default", PATHS.root, PATHS.segments):
        disk.make_directory(name)
    write_atomically(disk, PATHS.segment(0), log.seal())
    job = StatisticsJob(disk, PATHS, 0, b"")
    while not job.is_done:
        job.run()
    schemas = [pa.ipc.read_schema(pa.py_buffer(schema.message)) for schema, _ in job.streams]
    found = {
        schema.slot_id: columns
        for (schema, _), columns in zip(job.streams, decode_statistics(job.statistics, schemas), strict=True)
    }
    assert found[5] is None
    assert found[6] is not None
    assert found[6]["n"].largest == pa.scalar(2)
