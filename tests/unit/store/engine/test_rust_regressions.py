"""Each known weakness of the Rust implementation, as a test that it cannot happen here."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from quiver_actors.base.model import SEGMENT_BUNDLES_MAX
from quiver_actors.base.units import SECOND_NS
from quiver_actors.errors import BundleTooLarge
from quiver_actors.store.disk.protocol import Disk
from quiver_actors.store.jobs.commits import SealJob
from quiver_actors.store.jobs.job import Job
from quiver_actors.store.jobs.room import AllocateJob
from tests.disks.crashes import CrashMode
from tests.disks.simulated import SimDisk
from tests.support.engine_driver import EngineDriver, numbered_batch, topic_settings


def acknowledge_all(driver: EngineDriver, subscriber: str) -> list[int]:
    numbers = []
    for segment_seq, indexes, *_ in driver.claim(subscriber, "x", 1_000_000):
        reader = driver.read(segment_seq)
        numbers += [reader.bundle(index)[0].column(0)[0].as_py() for index in indexes]
        assert driver.resolve(subscriber, "x", segment_seq, "ack", indexes, 0) == []
    driver.flush_progress()
    return numbers


def kill_and_reopen(driver: EngineDriver) -> None:
    driver.engine._lock.release()
    driver.reopen()
    driver.settle()


@pytest.mark.parametrize("clean", [True, False])
def test_numbers_are_not_reused_after_a_restart_of_an_emptied_store(disk: Disk, clean: bool) -> None:
    """4024: after everything was consumed and deleted, new data got old numbers and counted as delivered."""
    driver = EngineDriver(disk)
    driver.engine.registrations.register("s", "latest")
    seen: set[tuple[int, int]] = set()
    for number in range(4):
        (run,) = driver.push_numbered(number)
        assert (run.segment_seq, run.sequence) not in seen
        assert all(run.segment_seq > old and run.sequence > sequence for old, sequence in seen)
        seen.add((run.segment_seq, run.sequence))
        driver.settle()
        driver.seal()
        assert acknowledge_all(driver, "s") == [number]
        assert driver.engine.segments() == []
        if clean:
            driver.drain_and_close()
            driver.reopen()
            driver.settle()
        else:
            kill_and_reopen(driver)


def test_a_failed_seal_followed_by_a_good_one_loses_nothing(disk: Disk, monkeypatch: pytest.MonkeyPatch) -> None:
    """A failed segment write left its data in the log only, and the next seal moved the cursor past it."""
    driver = EngineDriver(disk)
    driver.push_numbered(0, 3)
    driver.settle()
    driver.engine.seal_now()
    driver.commit()
    job = driver.engine.next_background()
    while not isinstance(job, SealJob):
        assert job is not None
        job.run()
        driver.engine.finish(job)
        job = driver.engine.next_background()
    kill_and_reopen(driver)  # the seal never ran: its log is complete under its rotated name
    driver.engine.registrations.register("s", "earliest")
    driver.push_numbered(3, 2)
    driver.settle()
    driver.seal()
    assert driver.claim_numbers("s") == [0, 1, 2, 3, 4]


def test_positions_stay_right_after_a_partial_purge_and_a_restart(disk: Disk) -> None:
    """Positions of rotated files were summed from 0 on reopen instead of read from their headers."""
    driver = EngineDriver(disk)
    driver.engine.registrations.register("s", "latest")
    for number in range(3):
        driver.push_numbered(number)
        driver.settle()
        driver.seal()
    acknowledge_all(driver, "s")
    driver.push_numbered(3)
    driver.commit()
    before = driver.engine._parts.numbers.position
    kill_and_reopen(driver)
    assert driver.engine._parts.numbers.position >= before
    assert acknowledge_all(driver, "s") == [3]
    kill_and_reopen(driver)
    assert acknowledge_all(driver, "s") == [], "nothing is replayed twice"


def test_a_schema_that_differs_only_in_nullability_cannot_poison_the_log(disk: Disk) -> None:
    """Two schemas under one weak fingerprint failed after the log append, and again at every open."""
    driver = EngineDriver(disk)
    nullable = pa.record_batch([pa.array([1])], schema=pa.schema([pa.field("x", pa.int64())]))
    strict = pa.record_batch([pa.array([2])], schema=pa.schema([pa.field("x", pa.int64(), nullable=False)]))
    driver.push({0: nullable}, {0: strict})
    driver.commit()
    kill_and_reopen(driver)
    reader = driver.read(0)
    assert reader.bundle(0)[0].schema == nullable.schema
    assert reader.bundle(1)[0].schema == strict.schema


def test_a_full_progress_bitmap_seals_instead_of_overflowing(disk: Disk) -> None:
    """More than 65,536 bundles in a segment made its progress file unreadable; here such a segment cannot come to be."""
    driver = EngineDriver(disk)
    driver.engine.registrations.register("s", "latest")
    tiny = numbered_batch(0, rows=1)
    for _ in range(0, SEGMENT_BUNDLES_MAX + 8192, 8192):
        driver.push(*({0: tiny} for _ in range(8192)))
        driver.settle()
    driver.seal()
    counts = [info.bundle_count for info in driver.engine.segments()]
    assert len(counts) == 2
    assert max(counts) <= SEGMENT_BUNDLES_MAX
    assert len(acknowledge_all(driver, "s")) == sum(counts)
    kill_and_reopen(driver)
    assert driver.claim_numbers("s") == []


def test_switching_from_wal_to_segment_only_keeps_sealing(disk: Disk) -> None:
    """After such a switch every seal failed on a cursor that went back."""
    driver = EngineDriver(disk)
    driver.push_numbered(0)
    driver.settle()
    driver.seal()
    driver.drain_and_close()
    driver.settings = topic_settings(durability="segment_only")
    driver.reopen()
    driver.engine.registrations.register("s", "earliest")
    driver.push_numbered(1)
    driver.settle()
    driver.seal()
    assert driver.claim_numbers("s") == [0, 1]


def test_an_idle_open_segment_seals_by_itself(disk: Disk) -> None:
    """Time was only looked at during ingest."""
    driver = EngineDriver(disk)
    driver.engine.registrations.register("s", "latest")
    driver.push_numbered(0)
    driver.settle()
    driver.clock.advance(5 * SECOND_NS)
    driver.settle()
    assert driver.claim_numbers("s") == [0]


def test_one_deferred_bundle_does_not_block_newer_ones(disk: Disk) -> None:
    """The oldest unclaimed bundle was always the next one, also while it waited for its backoff."""
    driver = EngineDriver(disk)
    driver.engine.registrations.register("s", "latest")
    driver.push_numbered(0, 3)
    driver.settle()
    driver.seal()
    ((segment_seq, indexes, *_),) = driver.claim("s", "x", 1)
    driver.resolve("s", "x", segment_seq, "defer", indexes, 30 * SECOND_NS)
    assert driver.claim_numbers("s") == [1, 2]
    driver.clock.advance(30 * SECOND_NS)
    driver.settle()
    assert driver.claim_numbers("s") == [0]


def test_damage_in_one_log_file_costs_its_own_bundles_only(disk: Disk, tmp_path: Path) -> None:
    """Corruption in one log file discarded every later one."""
    driver = EngineDriver(disk, topic_settings(segment_max_bundle_count=4))
    runs = []
    for number in range(8):
        runs += driver.push_numbered(number)
        driver.commit()
        driver.engine.intake.can_stage(1000)
        job = driver.engine.next_background()
        if isinstance(job, AllocateJob):
            job.run()
            driver.engine.finish(job)
    driver.engine._lock.release()
    logs = sorted((tmp_path / "default/core_0/wal").glob("quiver.wal.[0-9]*"))
    assert logs
    damaged = bytearray(logs[0].read_bytes())
    second_entry = 121 + int.from_bytes(damaged[121:125], "little") + 8
    damaged[second_entry + 300] ^= 0xFF
    logs[0].write_bytes(damaged)
    driver.reopen()
    driver.engine.registrations.register("s", "earliest")
    driver.settle()
    assert driver.claim_numbers("s") == [0, 2, 3, 4, 5, 6, 7]
    assert driver.engine.figures().quarantined == 1
    reader = driver.read(runs[2].segment_seq)
    assert reader.bundle(runs[2].bundle_index)[0].column(0)[0].as_py() == 2, "ids behind the damage stay"
    assert list((tmp_path / "default/core_0/quarantine").iterdir())


def test_a_damaged_segment_goes_to_quarantine_and_is_announced(disk: Disk, tmp_path: Path) -> None:
    """Damaged segments stayed on disk, outside the budget, and a read error leaked the claim."""
    driver = EngineDriver(disk)
    driver.engine.registrations.register("s", "latest")
    for number in range(3):
        driver.push_numbered(number)
        driver.settle()
        driver.seal()
    driver.engine._lock.release()
    path = tmp_path / "default/core_0/segments/0000000000000001.qseg"
    path.chmod(0o600)
    content = bytearray(path.read_bytes())
    content[400] ^= 0xFF
    path.write_bytes(content)
    driver.events.clear()
    driver.reopen()
    driver.settle()
    assert driver.claim_numbers("s") == [0, 2]
    gaps = [event for event in driver.events if type(event).__name__ == "GapFound"]
    assert [(gap.segment_seq, gap.bundle_count, gap.reason) for gap in gaps] == [(1, 1, "damaged")]  # type: ignore[attr-defined]
    assert not path.exists()


def test_progress_is_flushed_at_shutdown(disk: Disk) -> None:
    """Acknowledgements just before a shutdown were redelivered."""
    driver = EngineDriver(disk)
    driver.engine.registrations.register("s", "latest")
    driver.push_numbered(0, 2)
    driver.settle()
    driver.seal()
    ((segment_seq, indexes, *_),) = driver.claim("s", "x", 1)
    driver.resolve("s", "x", segment_seq, "ack", indexes, 0)
    driver.drain_and_close()
    driver.reopen()
    driver.settle()
    assert driver.claim_numbers("s") == [1]


def test_an_entry_over_the_limit_is_refused_before_it_is_written(disk: Disk) -> None:
    """The reader's limit of 256 MiB was not enforced at the writer: such an entry was acknowledged and unreadable."""
    driver = EngineDriver(disk)
    zeros = pa.array([bytes(1 << 20)] * 257, pa.binary())
    with pytest.raises(BundleTooLarge, match="256"):
        driver.layout([{0: pa.record_batch({"x": zeros})}])


def test_a_reader_that_fails_does_not_keep_its_claims_from_others(disk: Disk) -> None:
    """After a read error the bundle stayed claimed until the next restart."""
    driver = EngineDriver(disk)
    driver.engine.registrations.register("s", "latest")
    driver.push_numbered(0, 3)
    driver.settle()
    driver.seal()
    ((segment_seq, indexes, *_),) = driver.claim("s", "unlucky", 3)
    assert driver.claim("s", "other", 3) == []
    driver.engine.check_segment(segment_seq)
    driver.engine.claims.release("unlucky")
    driver.settle()
    assert driver.claim_numbers("s", owner="other") == [0, 1, 2]
    assert list(indexes) == [0, 1, 2]


def test_a_log_that_became_a_segment_is_not_replayed_again(disk: Disk, tmp_path: Path) -> None:
    """A crash between the segment and the cursor stored everything twice: nothing said what the segment covers."""
    driver = EngineDriver(disk)
    driver.engine.registrations.register("s", "latest")
    driver.push_numbered(0, 4)
    driver.settle()
    wal = tmp_path / "default/core_0/wal"
    log, cursor = (wal / "quiver.wal").read_bytes(), wal / "quiver.wal.cursor"
    before = cursor.read_bytes() if cursor.exists() else None
    driver.seal()
    driver.engine._lock.release()
    (wal / "quiver.wal.99").write_bytes(log)
    if before is None:
        cursor.unlink()
    else:
        cursor.write_bytes(before)
    driver.reopen()
    driver.settle()
    assert driver.claim_numbers("s") == [0, 1, 2, 3]
    assert len(driver.engine.segments()) == 1
    assert not (wal / "quiver.wal.99").exists()


def test_bundles_that_come_during_a_seal_are_not_covered_by_its_cursor(disk: Disk) -> None:
    """The cursor moved behind bundles that were pushed while the segment was written."""
    driver = EngineDriver(disk)
    driver.engine.registrations.register("s", "latest")
    driver.push_numbered(0, 3)
    driver.settle()
    driver.engine.seal_now()
    driver.commit()
    seal = next(job for job in iter(driver.engine.next_background, None) if _is_seal(driver, job))
    driver.push_numbered(3, 2)
    driver.commit()
    seal.run()
    driver.push_numbered(5)
    driver.commit()
    driver.engine.finish(seal)
    kill_and_reopen(driver)
    assert driver.claim_numbers("s") == [0, 1, 2, 3, 4, 5]


def _is_seal(driver: EngineDriver, job: Job) -> bool:
    """Any other job is done at once."""
    if isinstance(job, SealJob):
        return True
    job.run()
    driver.events += driver.engine.finish(job)
    return False


# --- what the bugs of other stores have taught -------------------------------------------------------------------------------


def test_an_entry_in_the_place_of_another_is_not_delivered_as_that_one(disk: Disk, tmp_path: Path) -> None:
    """commonware 4260: a wrong record was returned because its own checksum was right."""
    driver = EngineDriver(disk)
    driver.engine.registrations.register("s", "latest")
    driver.push_numbered(0, 4)
    driver.commit()
    driver.engine._lock.release()
    path = tmp_path / "default/core_0/wal/quiver.wal"
    data = path.read_bytes()
    size = int.from_bytes(data[121:125], "little") + 8
    entries = [data[121 + n * size : 121 + (n + 1) * size] for n in range(4)]
    swapped = b"".join((entries[0], entries[2], entries[1], entries[3]))
    path.write_bytes(data[:121] + swapped + data[121 + 4 * size :])
    driver.reopen()
    driver.settle()
    assert driver.claim_numbers("s") == [0, 2, 3]
    assert [(gap.bundle_index_first, gap.bundle_count) for gap in driver.told] == [(1, 1)]


def test_a_power_loss_between_syncs_uses_no_number_again() -> None:
    """A sequence that was acknowledged before its sync may be with a consumer: the ceiling of the numbers is durable ahead of use."""
    disk = SimDisk()
    driver = EngineDriver(disk, topic_settings(wal_flush_interval_ns=25_000_000))
    driver.push_numbered(0)
    driver.settle()
    (lost,) = driver.push_numbered(1)
    left = EngineDriver(disk.crash(CrashMode.DROP), driver.settings)
    (new,) = left.push_numbered(2)
    assert new.sequence > lost.sequence
    assert new.segment_seq > lost.segment_seq
