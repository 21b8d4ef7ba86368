"""A data directory rebuilt from an archive: cut off anywhere it goes on, on any damage it tells, and it uses no number twice."""

from __future__ import annotations

import errno
import shutil
from pathlib import Path

import pytest

import quiver_actors
from quiver_actors.archive.node_state import PreparedStage
from quiver_actors.archive.restoring.directory import Restored, restore
from quiver_actors.archive.restoring.plan import Loss
from quiver_actors.archive.restoring.stages import NOT_ARCHIVED
from quiver_actors.client import GapNotice
from quiver_actors.errors import (
    DiskError,
    InvalidFormat,
    StorageFull,
    UsageError,
)
from quiver_actors.store.disk.posix import PosixDisk
from quiver_actors.store.disk.protocol import read_whole
from quiver_actors.store.files.core_file import decode_core
from quiver_actors.store.objects.errors import ArchiveError
from quiver_actors.store.staged.records import decode_journal
from tests.disks.crashes import CrashMode
from tests.disks.faulty import FaultyDisk, SimulatedCrash
from tests.disks.simulated import SimDisk
from tests.support.archived import NODE, ArchiveWriter
from tests.support.faulty_objects import FAULTS, FaultyStore
from tests.support.restorable import (
    PATHS,
    batch,
    put_state,
    run,
    store_on,
    tree,
)

# --- what is in it -------------------------------------------------------------------------------------------------------


@pytest.fixture
def on_disk(objects: SimDisk, tmp_path: Path) -> tuple[Path, Restored]:
    """A directory of the file system that was restored into."""
    path = tmp_path / "restored"
    path.mkdir(mode=0o700)
    return path, run(PosixDisk(str(path)), store_on(objects))


def test_subscribers_and_producers_go_on_and_are_told_what_is_lost(on_disk: tuple[Path, Restored]) -> None:
    path, restored = on_disk
    (engine,) = restored.plan.engines
    assert [each.segment_seq for each in engine.segments] == [0, 1, 2]
    assert engine.losses == [Loss(3, 0, is_sealed=False)]
    gaps: list[GapNotice] = []
    with quiver_actors.open(path) as store:
        with store.subscribe("reader", on_gap=gaps.append) as deliveries:
            ids = []
            while (delivery := deliveries.get(timeout=1)) is not None:
                ids.append(delivery.batch.column("id")[0].as_py())
                delivery.ack()
        assert ids == [3, 4, 5]
        assert [(gap.segment_seq, gap.bundle_count, gap.reason) for gap in gaps] == [(3, None, "damaged")]
        # The state knows the numbers 0 to 3, the segment that was archived after it 4 and 5, and nobody 6 and 7.
        receipts = store.push_many([batch(n) for n in range(8)], producer="p", sequence=0)
        places = [(each.bundle_id.segment_seq, each.bundle_id.bundle_index) for each in receipts]
        assert places[:6] == [(seq, at) for seq in range(3) for at in range(2)]
        assert all(segment_seq >= 1 << 32 for segment_seq, _ in places[6:])


def test_a_producer_whose_last_numbers_were_lost_may_go_on_behind_them(on_disk: tuple[Path, Restored]) -> None:
    with quiver_actors.open(on_disk[0]) as store:
        receipt = store.push(batch(8), producer="p", sequence=8)
        assert receipt.bundle_id.segment_seq >= 1 << 32


def test_prepared_stages_are_lost_and_no_stage_of_the_dead_node_counts_as_published(objects: SimDisk) -> None:
    store, disk = store_on(objects), SimDisk()
    put_state(store, {"prepared": (PreparedStage(5, "txn", 1, 10),)})
    restored = run(disk, store)
    assert [(each.stage.txn_id, each.problem) for each in restored.lost_stages] == [("txn", NOT_ARCHIVED)]
    journal = decode_journal(read_whole(disk, PATHS.transactions, 1 << 20))
    assert [(each.number, each.txn_id) for each in journal.dropped] == [(5, "txn")]
    assert journal.dropped_floor == journal.next_number > 1 << 32


def test_a_restore_of_what_another_restore_has_begun_uses_none_of_its_numbers(objects: SimDisk) -> None:
    store, first, second = store_on(objects), SimDisk(), SimDisk()
    run(first, store)
    one = decode_core(read_whole(first, PATHS.core, 1000))
    restored = run(second, store)
    two = decode_core(read_whole(second, PATHS.core, 1000))
    assert one.incarnation == two.incarnation
    assert two.next_segment_seq_reserved >= one.next_segment_seq_reserved + (1 << 32)
    assert two.next_sequence_reserved >= one.next_sequence_reserved + (1 << 52)
    # Nobody knows what the first one has stored and lost.
    (engine,) = restored.plan.engines
    assert engine.losses == [
        Loss(3, 0, is_sealed=False),
        Loss(one.next_segment_seq_reserved, 0, is_sealed=False),
    ]
    with pytest.raises(UsageError, match="not empty"):
        run(first, store)


# --- what goes wrong -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", [CrashMode.DROP, CrashMode.KEEP, CrashMode.REORDER])
def test_cut_off_at_each_call_of_the_disk_it_goes_on(objects: SimDisk, mode: CrashMode) -> None:
    reference = SimDisk()
    run(reference, store_on(objects.copy()))
    wanted = tree(reference)
    for at in range(1, 1000):
        store, disk = store_on(objects.copy()), SimDisk()
        faulty = FaultyDisk(disk)
        faulty.crash_at(at)
        try:
            run(faulty, store)
        except SimulatedCrash:
            left = disk.crash(mode, at)
        else:
            assert at > 30
            return
        if left.exists("quiver.version") and b"restoring" not in read_whole(left, "quiver.version", 100):
            assert tree(left) == wanted, "it says that it is whole"
            continue
        run(left, store)
        assert tree(left) == wanted
    raise AssertionError("the restore never ends")


@pytest.mark.parametrize("fault", FAULTS)
def test_each_call_of_the_store_fails_and_the_next_attempt_goes_on(objects: SimDisk, fault: str) -> None:
    reference = SimDisk()
    run(reference, store_on(objects.copy()))
    wanted = tree(reference)
    for at in range(1000):
        inner, disk = store_on(objects.copy()), SimDisk()
        store = FaultyStore(inner, at, fault)
        try:
            run(disk, store)
        except ArchiveError:
            run(disk, inner)
        assert tree(disk) == wanted
        if len(store.calls) <= at:
            assert at > 5
            return
    raise AssertionError("the restore never ends")


def test_a_disk_without_room_is_told_before_the_archive_is_touched(objects: SimDisk) -> None:
    store = store_on(objects)
    before = tree(objects)
    with pytest.raises(StorageFull, match="bytes free"):
        run(SimDisk(capacity_bytes=1 << 20), store)
    assert tree(objects) == before


def test_a_disk_that_fills_up_meanwhile_is_told_and_the_next_attempt_goes_on(objects: SimDisk) -> None:
    store, disk = store_on(objects), SimDisk()
    reference = SimDisk()
    run(reference, store_on(objects.copy()))
    faulty = FaultyDisk(disk)
    faulty.fail("write", 1, errno.ENOSPC, path_part="qseg")
    with pytest.raises(DiskError, match="No space left"):
        run(faulty, store)
    run(disk, store)
    assert tree(disk) == tree(reference)


@pytest.mark.parametrize("is_missing", [True, False])
def test_a_segment_that_is_damaged_in_the_store_is_told_and_the_rest_restored(
    objects: SimDisk, tmp_path: Path, is_missing: bool
) -> None:
    (path,) = [path for path in tree(objects) if "00000001.0.qseg" in path and not path.endswith(".crc")]
    if is_missing:
        objects.unlink(path)
    else:
        file = objects.open_write(path)
        file.write([b"?"], 500)
        file.close()
    data = tmp_path / "restored"
    data.mkdir(mode=0o700)
    restored = run(PosixDisk(str(data)), store_on(objects))
    assert [each.segment_seq for each in restored.damaged] == [1]
    gaps: list[GapNotice] = []
    with quiver_actors.open(data) as store, store.subscribe("reader", on_gap=gaps.append) as deliveries:
        ids = []
        while (delivery := deliveries.get(timeout=1)) is not None:
            ids.append(delivery.batch.column("id")[0].as_py())
            delivery.ack()
    assert ids == [4, 5]
    assert [(gap.segment_seq, gap.bundle_index_first, gap.bundle_count) for gap in gaps] == [(1, 1, 1), (3, 0, None)]


def test_a_directory_with_anything_in_it_is_refused_and_stays_as_it_is(objects: SimDisk) -> None:
    disk = SimDisk()
    disk.create("mine").close()
    before = tree(objects)
    with pytest.raises(UsageError, match="not empty: mine"):
        run(disk, store_on(objects))
    assert disk.list_directory(".") == ["mine"]
    assert tree(objects) == before


def test_the_root_of_a_new_file_system_is_empty(objects: SimDisk) -> None:
    disk = SimDisk()
    disk.make_directory("lost+found")
    assert run(disk, store_on(objects)).segment_count


def test_no_program_opens_a_directory_that_is_not_whole(objects: SimDisk, tmp_path: Path) -> None:
    data = tmp_path / "restored"
    data.mkdir(mode=0o700)
    faulty = FaultyDisk(PosixDisk(str(data)))
    faulty.crash_at(30)
    with pytest.raises(SimulatedCrash):
        run(faulty, store_on(objects))
    kept = tmp_path / "kept"
    shutil.copytree(data, kept)
    with pytest.raises(InvalidFormat, match="run it again"):
        quiver_actors.open(data)
    assert {path.name for path in kept.rglob("*")} <= {path.name for path in data.rglob("*")}


@pytest.mark.parametrize("path", ["../../etc", "/etc/x", "default/./core_0", ""])
def test_a_state_that_names_a_path_outside_is_refused(objects: SimDisk, path: str) -> None:
    store, disk = store_on(objects), SimDisk()
    put_state(store, {"directory": path})
    with pytest.raises(InvalidFormat, match="no path in a data directory"):
        run(disk, store)
    assert disk.list_directory(".") == []


def test_an_archive_without_a_state_is_refused_with_what_to_do(tmp_path: Path) -> None:
    writer = ArchiveWriter(f"file://{tmp_path}/objects")
    with pytest.raises(UsageError, match="quiver archive get"):
        run(SimDisk(), writer.store)
    with pytest.raises(UsageError, match=f"nodes there: {NODE}"):
        restore(SimDisk(), writer.store, "other")
