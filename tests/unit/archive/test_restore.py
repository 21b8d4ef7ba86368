"""A data directory rebuilt from an archive: cut off anywhere it goes on, on any damage it tells, and it uses no number twice."""

from __future__ import annotations

import errno
import shutil
from collections.abc import Mapping
from pathlib import Path

import msgspec
import numpy as np
import pyarrow as pa
import pytest

import quiver_actors
from quiver_actors.archive.directory_store import DirectoryStore
from quiver_actors.archive.errors import ArchiveError
from quiver_actors.archive.keys import StreamKey
from quiver_actors.archive.manifest_store import ManifestWriter, StateUpload, read_head, read_state
from quiver_actors.archive.node_state import NodeState, PreparedStage, decode_state, encode_state
from quiver_actors.archive.object_store import ObjectStore
from quiver_actors.archive.opening import open_store
from quiver_actors.archive.restoring.directory import Restored, restore
from quiver_actors.archive.restoring.plan import Loss
from quiver_actors.archive.restoring.stages import NOT_ARCHIVED
from quiver_actors.archive.staged_bundles import StagedBundles, described
from quiver_actors.archive.state_keeper import engine_directories, take_state
from quiver_actors.archive.topic_archive import Behind
from quiver_actors.archive.uploads import Throttle
from quiver_actors.base.protocol.segment_messages import SegmentInfo
from quiver_actors.client import GapNotice
from quiver_actors.embedded import Store
from quiver_actors.errors import (
    DiskError,
    InvalidFormat,
    StorageFull,
    TransactionAborted,
    TransactionLost,
    UsageError,
)
from quiver_actors.store.disk.posix import PosixDisk
from quiver_actors.store.disk.protocol import Disk, read_whole
from quiver_actors.store.files.core_file import decode_core
from quiver_actors.store.files.paths import EnginePaths
from quiver_actors.store.staged.records import PreparedRecord, decode_journal, decode_prepared, encode_prepared
from quiver_actors.transactions import Decisions, Token
from tests.disks.crashes import CrashMode
from tests.disks.faulty import FaultyDisk, SimulatedCrash
from tests.disks.simulated import SimDisk
from tests.support.archived import NODE, ArchiveWriter
from tests.support.faulty_objects import FAULTS, FaultyStore

PATHS = EnginePaths("default/core_0")
ACKED = 3
"""Bundles that the subscriber `reader` has acknowledged."""


def batch(number: int) -> pa.RecordBatch:
    return pa.record_batch({"id": pa.array(np.arange(number, number + 4))})


def info(segment_seq: int, bundle_count: int) -> SegmentInfo:
    return SegmentInfo(segment_seq, bundle_count, 4, 1000, 0, 0)


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The archive of a store of four segments, of which the last was not archived, and the one before not known to the state. A stage
    of two bundles is prepared."""
    base = tmp_path_factory.mktemp("archive")
    data, url = base / "data", f"file://{base}/objects"
    with (
        quiver_actors.open(data) as store,
        store.subscribe("holder", start="earliest"),
        store.subscribe("reader", start="earliest") as deliveries,
    ):
        for first in (0, 2):
            store.push_many([batch(n) for n in (first, first + 1)], producer="p", sequence=first)
            store.flush()
        for _ in range(ACKED):
            delivery = deliveries.get(timeout=30)
            assert delivery is not None
            delivery.ack()
        with store.stage("txn") as stage:
            stage.push_many([batch(50), batch(60)])
            stage.prepare()
    disk = PosixDisk(str(data))
    identity = decode_core(read_whole(disk, PATHS.core, 1000))
    stream = StreamKey("default", identity.incarnation.hex(), 0)
    behind = {stream: Behind([], [info(2, 1)], 3)}
    state = take_state(disk, NODE, engine_directories(disk, "default"), behind)
    staged = StagedBundles(disk, open_store(url), Throttle(0, print)).upload(state, frozenset())
    state = described(state, staged, "")
    with quiver_actors.open(data) as store:
        for number in (4, 6):
            store.push_many([batch(number), batch(number + 1)], producer="p", sequence=number)
            store.flush()
    files = sorted((data / "default" / "core_0" / "segments").iterdir())
    segments = {int(path.name.partition(".")[0]): path.read_bytes() for path in files}
    assert sorted(segments) == [0, 1, 2, 3]
    writer = ArchiveWriter(url, incarnation=stream.incarnation)
    del segments[3]
    writer.archive(segments)
    writer.manifest.record_state(StateUpload(encode_state(state), state.taken_unix_ns))
    return base / "objects"


@pytest.fixture
def objects(archive: Path) -> SimDisk:
    """The archive on a disk of its own."""
    disk = SimDisk()
    for path in archive.rglob("*"):
        if path.is_file():
            name = str(path.relative_to(archive))
            disk.make_directory(name.rpartition("/")[0])
            file = disk.create(name)
            file.write([path.read_bytes()], 0)
            file.fdatasync()
            file.close()
            disk.sync_directory(name.rpartition("/")[0])
    return disk


def store_on(disk: Disk) -> ObjectStore:
    return DirectoryStore(disk, "file:///objects")


def run(disk: Disk, store: ObjectStore) -> Restored:
    return restore(disk, store, NODE, at_once=1)


def tree(disk: Disk, path: str = ".") -> dict[str, bytes]:
    """The content of every file but those with random names and numbers of their own."""
    found: dict[str, bytes] = {}
    for name in disk.list_directory(path):
        below = name if path == "." else f"{path}/{name}"
        try:
            found[below] = read_whole(disk, below, 1 << 30)
        except DiskError:
            found |= tree(disk, below)
    found.pop("quiver.archive", None)
    return found


def state_in(store: ObjectStore) -> NodeState:
    head = read_head(store, NODE)
    assert head is not None
    assert head.state is not None
    return decode_state(read_state(store, head.state))


def put_state(store: ObjectStore, change: Mapping[str, object]) -> None:
    """Change the only engine of the state in the archive, as the owner of the archive may."""
    head = read_head(store, NODE)
    assert head is not None
    state = state_in(store)
    engines = tuple(msgspec.structs.replace(each, **change) for each in state.engines)
    content = encode_state(msgspec.structs.replace(state, engines=engines))
    ManifestWriter.own(store, NODE, head.owner, head.owner).record_state(StateUpload(content, state.taken_unix_ns))


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


def staged_path(objects: SimDisk) -> str:
    (path,) = [path for path in tree(objects) if path.endswith(".stage")]
    return path


def stage_in(store: ObjectStore) -> PreparedStage:
    (engine,) = state_in(store).engines
    (stage,) = engine.prepared
    return stage


def test_a_prepared_stage_comes_back_and_may_be_published_as_often_as_before(objects: SimDisk, tmp_path: Path) -> None:
    record = decode_prepared(stage_in(store_on(objects)).record)
    data = tmp_path / "restored"
    data.mkdir(mode=0o700)
    restored = run(PosixDisk(str(data)), store_on(objects))
    assert restored.lost_stages == []
    token = token_of(record)
    with quiver_actors.open(data) as store:
        assert [each.state for each in store.staged()[0]] == ["prepared"]
        store.publish([token])
        store.publish([token])
    with quiver_actors.open(data) as store:
        store.publish([token])
        assert last_ids(store) == [50, 60]
        with pytest.raises(TransactionLost, match="too old"):
            store.publish([msgspec.structs.replace(token, number=token.number + 1)])


def last_ids(store: Store) -> list[int]:
    """The first value of each bundle of the last segment."""
    last = store.segments()[0][-1]
    segment = store.read_segment(0, "default", last.segment_seq)
    return [segment.bundle(index)[0].column("id")[0].as_py() for index in range(last.bundle_count)]


def token_of(record: PreparedRecord) -> Token:
    order, (part,) = record.order, record.parts
    return Token(
        txn_id=order.txn_id,
        epoch=order.epoch,
        partition=order.partition,
        attempt=order.attempt,
        number=record.number,
        expires_unix_ns=record.expires_unix_ns,
        node="",
        topic="default",
        core=0,
        incarnation=record.incarnation.hex(),
        bundles=part.bundles,
        rows=part.rows,
        size_bytes=part.size_bytes,
    )


@pytest.mark.parametrize("damage", ["missing", "changed", "cut"])
def test_a_stage_that_is_damaged_in_the_archive_is_lost_and_its_transaction_aborted(
    objects: SimDisk, tmp_path: Path, damage: str
) -> None:
    path = staged_path(objects)
    if damage == "missing":
        objects.unlink(path)
    else:
        file = objects.open_write(path)
        file.write([b"?"], 500) if damage == "changed" else file.truncate(400)
        file.close()
    record = decode_prepared(stage_in(store_on(objects)).record)
    data = tmp_path / "restored"
    data.mkdir(mode=0o700)
    restored = run(PosixDisk(str(data)), store_on(objects))
    assert [(each.stage.number, each.outcome) for each in restored.lost_stages] == [(record.number, "abort")]
    with quiver_actors.open(data) as store:
        assert not any(store.staged().values())
        with pytest.raises(TransactionAborted, match="by quiver restore"):
            store.decide("txn", record.order.epoch, [token_of(record)])
        with pytest.raises(TransactionLost, match="in the archive"):
            store.publish([token_of(record)])


@pytest.mark.parametrize("is_committed", [True, False])
def test_the_log_of_the_decision_is_asked_about_a_lost_stage(
    objects: SimDisk, tmp_path: Path, is_committed: bool
) -> None:
    stage = stage_in(store_on(objects))
    record = decode_prepared(stage.record)
    log = Decisions(str(tmp_path / "log"))
    order = msgspec.structs.replace(record.order, decisions=log.location)
    record = msgspec.structs.replace(record, order=order)
    if is_committed:
        log.commit("txn", 0, [token_of(record)])
    lost = msgspec.structs.replace(stage, record=encode_prepared(record), is_archived=False)
    put_state(store_on(objects), {"prepared": (lost,)})
    restored = run(SimDisk(), store_on(objects))
    assert [each.outcome for each in restored.lost_stages] == ["commit" if is_committed else "abort"]
    found = log.newest("txn")
    assert found is not None
    assert found.is_commit is is_committed


def test_a_log_that_cannot_be_asked_is_told(objects: SimDisk) -> None:
    stage = stage_in(store_on(objects))
    record = decode_prepared(stage.record)
    order = msgspec.structs.replace(record.order, decisions="/dev/null/log")
    record = msgspec.structs.replace(record, order=order)
    put_state(
        store_on(objects),
        {"prepared": (msgspec.structs.replace(stage, record=encode_prepared(record), is_archived=False),)},
    )
    (lost,) = run(SimDisk(), store_on(objects)).lost_stages
    assert "/dev/null/log cannot be used" in lost.outcome


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
