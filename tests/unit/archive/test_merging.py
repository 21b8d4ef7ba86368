"""Small archived segments become packs: read before, between and after, with each call of the store failing, and killed at each."""

from __future__ import annotations

import os
import signal
import uuid
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

import quiver_actors
from quiver_actors.archive import merging
from quiver_actors.archive.checking import check_segment
from quiver_actors.archive.expiry import expire_stream
from quiver_actors.archive.manifest import PACKED_VERSION, Owner, Segment, key_of, merged
from quiver_actors.archive.manifest_store import ManifestWriter, read_head, read_part
from quiver_actors.archive.merging import KEPT_NS, PAUSE_NS, Merging
from quiver_actors.archive.reading.archive import Archive
from quiver_actors.archive.reading.contents import NodeContents
from quiver_actors.archive.uploads import Throttle
from quiver_actors.errors import UnsupportedVersion
from quiver_actors.store.objects.errors import ArchiveError, ArchiveFenced
from quiver_actors.store.objects.object_store import ObjectStore
from quiver_actors.store.objects.opening import open_store
from tests.crash.archiver_kills import BEHIND, MOMENTS, DeadlyStore
from tests.support.archived import NODE, ArchiveWriter, sealed_segments
from tests.support.faulty_objects import FAULTS, FaultyStore

SMALL = 7
"""Two packs of `PER_PACK`, and one segment that has to wait for more."""
PER_PACK = 3
FEW = PER_PACK + 1
"""Segments of the sweeps over all calls."""
BELOW_BYTES = 1 << 20


@pytest.fixture(autouse=True)
def _small_packs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(merging, "PACK_SEGMENTS", PER_PACK)


@pytest.fixture(scope="module")
def contents(tmp_path_factory: pytest.TempPathFactory) -> list[bytes]:
    """Segments of two bundles each."""
    batches = [pa.record_batch({"id": [number]}) for number in range(2 * SMALL)]
    pairs: list[list[dict[str | int, pa.RecordBatch]]] = [
        [{0: batches[2 * at]}, {0: batches[2 * at + 1]}] for at in range(SMALL)
    ]
    return sealed_segments(tmp_path_factory.mktemp("store"), pairs)


@pytest.fixture
def writer(contents: list[bytes]) -> Iterator[ArchiveWriter]:
    made = ArchiveWriter(f"memory://{uuid.uuid4().hex}")
    made.archive(dict(enumerate(contents)))
    yield made
    made.store.close()


class Merger:
    """A `Merging` whose time the test moves, and what it told."""

    def __init__(self, store: ObjectStore, below_bytes: int = BELOW_BYTES) -> None:
        self.now_ns = 1
        self.counts: list[int] = []
        self.merging = Merging(store, NODE, below_bytes, Throttle(0, print), self.counts.append, lambda: self.now_ns)

    def run(self, writer: ManifestWriter) -> None:
        """Go on until nothing is left to be done now."""
        idle = 0
        while idle < 3:  # a call that passes over a part is followed by others
            idle = 0 if self.merging.advance(writer) else idle + 1
            self.merging.wait()

    def sweep(self, writer: ManifestWriter) -> None:
        """Merge, and delete what readers of former manifests needed."""
        self.run(writer)
        self.now_ns += KEPT_NS
        self.run(writer)


def rows_in(store: ObjectStore) -> list[Segment]:
    head = read_head(store, NODE)
    assert head is not None
    return [row for stream in head.streams for ref in stream.parts for row in read_part(store, ref).segments]


def ids_in(archive: Archive) -> list[int]:
    return [bundle.batch.column("id")[0].as_py() for bundle in archive.read("default", 0)]


def opened(store: ObjectStore, directory: Path) -> Archive:
    return Archive(store, NodeContents(store, NODE), str(directory), 1 << 30)


def objects_in(store: ObjectStore) -> set[str]:
    """The objects of segments, by the ends of their names."""
    return {info.key.rpartition("/")[2] for info in store.objects(f"{NODE}/default")}


def check_whole(store: ObjectStore, directory: Path, count: int = SMALL) -> None:
    """Each segment has one row, which leads to its bytes; all bundles are read, each once."""
    rows = rows_in(store)
    assert [row.segment_seq for row in rows] == list(range(count))
    head = read_head(store, NODE)
    assert head is not None
    for row in rows:
        assert check_segment(store, key_of(NODE, head.streams[0].key, row), row) == ""
    assert ids_in(opened(store, directory)) == list(range(2 * count))


def test_small_segments_become_packs_and_their_objects_go_later(writer: ArchiveWriter, tmp_path: Path) -> None:
    before = objects_in(writer.store)
    merger = Merger(writer.store)
    merger.run(writer.manifest)
    assert merger.counts == [PER_PACK, PER_PACK]
    rows = rows_in(writer.store)
    assert [row.pack is not None for row in rows] == [True] * 6 + [False]
    assert len({row.pack.key for row in rows if row.pack is not None}) == 2
    packs = objects_in(writer.store) - before
    assert all(name.endswith(".qpack") for name in packs)
    assert before < objects_in(writer.store), "readers of the former manifest go on"
    check_whole(writer.store, tmp_path)
    merger.now_ns += KEPT_NS
    merger.run(writer.manifest)
    last = f"{SMALL - 1:020d}.0.qseg"
    assert objects_in(writer.store) == packs | {last, f"{last}.crc"}
    assert writer.manifest.head.streams[0].unswept == ()
    check_whole(writer.store, tmp_path)


def test_a_reader_of_the_former_manifest_goes_on_before_and_after_the_objects_go(
    writer: ArchiveWriter, tmp_path: Path
) -> None:
    early, late = opened(writer.store, tmp_path), opened(writer.store, tmp_path)
    for archive in (early, late):
        archive.segments()
    merger = Merger(writer.store)
    merger.run(writer.manifest)
    assert ids_in(early) == list(range(2 * SMALL))
    merger.sweep(writer.manifest)
    assert ids_in(late) == list(range(2 * SMALL)), "it looks at the manifest anew"


def test_segments_of_a_pack_are_read_with_few_requests(writer: ArchiveWriter, tmp_path: Path) -> None:
    counts = []
    for _ in range(2):
        store = FaultyStore(writer.store)
        ids_in(opened(store, tmp_path))
        counts.append(len(store.calls))
        Merger(writer.store).sweep(writer.manifest)
    assert counts == [2 + 2 * SMALL, 2 + 2 + 2], (
        "head and part; checksums and content of each segment, and of each pack at once"
    )


def test_large_segments_and_a_setting_of_zero_merge_nothing(writer: ArchiveWriter, contents: list[bytes]) -> None:
    for below_bytes in (0, min(map(len, contents))):
        merger = Merger(writer.store, below_bytes)
        merger.sweep(writer.manifest)
        assert merger.counts == []
    assert all(row.pack is None for row in rows_in(writer.store))


def test_a_closed_part_is_merged_though_there_is_less_than_a_pack(
    writer: ArchiveWriter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(merging, "PACK_SEGMENTS", 5)
    monkeypatch.setattr(merging, "PART_ROWS_MAX", SMALL)
    merger = Merger(writer.store)
    merger.sweep(writer.manifest)
    assert merger.counts == [5, 2]
    check_whole(writer.store, tmp_path)


def test_a_damaged_segment_keeps_its_row_and_the_others_are_merged(writer: ArchiveWriter) -> None:
    size_bytes = rows_in(writer.store)[1].size_bytes
    writer.store.put(writer.key(1), [bytes(size_bytes)], size_bytes)
    Merger(writer.store).run(writer.manifest)
    assert [row.pack is not None for row in rows_in(writer.store)] == [True, False, True, True, True, True, True]


@pytest.mark.parametrize("place", ["segment", "checksums"])
def test_a_pack_that_is_damaged_in_the_store_is_told(writer: ArchiveWriter, tmp_path: Path, place: str) -> None:
    Merger(writer.store).sweep(writer.manifest)
    row = rows_in(writer.store)[1]
    assert row.pack is not None
    found = writer.store.get(row.pack.key)
    assert found is not None
    at = row.pack.offset + 200 if place == "segment" else row.pack.sums_offset + 9
    content = found.content[:at] + bytes([found.content[at] ^ 1]) + found.content[at + 1 :]
    writer.store.put(row.pack.key, [content], len(content))
    assert check_segment(writer.store, row.pack.key, row) != ""
    archive = opened(writer.store, tmp_path)
    with pytest.raises(quiver_actors.errors.FormatError):
        ids_in(archive)
    assert archive.read_segment(0, "default", 2).bundle(0)[0].column("id")[0].as_py() == 4


def test_expired_segments_take_their_pack_with_them_when_none_is_left_in_it(writer: ArchiveWriter) -> None:
    Merger(writer.store).run(writer.manifest)
    rows = rows_in(writer.store)
    for through, left in ((1, 2), (2, 1)):
        (stream,) = writer.manifest.head.streams
        limit = rows[through].last_ingestion_unix_ns + 1
        expire_stream(writer.store, writer.manifest, stream, limit)
        writer.manifest.collect_garbage(writer.manifest.head.garbage)
        packs = [name for name in objects_in(writer.store) if name.endswith(".qpack")]
        assert len(packs) == left, through
    assert not [name for name in objects_in(writer.store) if name.startswith(f"{0:020d}.0")], "own objects go, too"
    merger = Merger(writer.store)
    merger.sweep(writer.manifest)
    assert writer.manifest.head.streams[0].unswept == ()


def test_a_part_that_was_changed_meanwhile_is_left_as_it_is(writer: ArchiveWriter) -> None:
    merger = Merger(writer.store)
    merger.merging.advance(writer.manifest)
    merger.merging.wait()
    rows = rows_in(writer.store)
    (stream,) = writer.manifest.head.streams
    expire_stream(writer.store, writer.manifest, stream, rows[0].last_ingestion_unix_ns + 1)
    merger.merging.advance(writer.manifest)
    assert [row.pack for row in rows_in(writer.store)] == [None] * (SMALL - 1)
    assert [key for key in writer.manifest.head.garbage if key.endswith(".qpack")]
    merger.run(writer.manifest)
    assert merger.counts == [PER_PACK, PER_PACK]


def test_a_pack_that_was_deleted_before_it_is_named_is_made_again(writer: ArchiveWriter, tmp_path: Path) -> None:
    merger = Merger(writer.store)
    merger.merging.advance(writer.manifest)
    merger.merging.wait()
    (pack,) = [info.key for info in writer.store.objects(f"{NODE}/default") if info.key.endswith(".qpack")]
    writer.manifest.release(pack)
    assert writer.manifest.collect_garbage([pack]) == 1
    merger.sweep(writer.manifest)
    check_whole(writer.store, tmp_path)


@pytest.mark.parametrize("moment", ["before", "while a pack is made", "before the objects go"])
def test_a_damaged_part_stops_neither_upkeep_nor_archiving(writer: ArchiveWriter, moment: str) -> None:
    merger = Merger(writer.store)
    if moment == "before the objects go":
        merger.run(writer.manifest)
    elif moment == "while a pack is made":
        merger.merging.advance(writer.manifest)
        merger.merging.wait()
    for stream in writer.manifest.head.streams:
        for ref in stream.parts:
            writer.store.put(ref.key, [b"no part"], 7)
    objects = {name for name in objects_in(writer.store) if name.endswith((".qseg", ".crc"))}
    merger.sweep(writer.manifest)
    assert objects_in(writer.store) >= objects, "nobody can tell which are in a pack"


def test_a_part_that_has_grown_meanwhile_is_merged(
    writer: ArchiveWriter, contents: list[bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("quiver_actors.archive.manifest_store.SMALL_PARTS_MAX", 1)
    merger = Merger(writer.store)
    merger.merging.advance(writer.manifest)
    merger.merging.wait()
    writer.record(SMALL, [writer.upload(SMALL, contents[0])])
    merger.run(writer.manifest)
    assert [row.pack is not None for row in rows_in(writer.store)] == [True] * 6 + [False] * 2


def test_an_older_program_refuses_a_manifest_with_packs(writer: ArchiveWriter, monkeypatch: pytest.MonkeyPatch) -> None:
    Merger(writer.store).run(writer.manifest)
    monkeypatch.setattr("quiver_actors.archive.manifest.VERSION", 1)
    with pytest.raises(UnsupportedVersion):
        read_head(writer.store, NODE)


def test_another_owner_ends_it_before_anything_is_deleted(writer: ArchiveWriter) -> None:
    merger = Merger(writer.store)
    merger.run(writer.manifest)
    objects = objects_in(writer.store)
    former = writer.manifest.head.owner
    other = Owner(epoch=former.epoch + 1, directory="other", start="other", since_unix_ns=1)
    ManifestWriter.own(writer.store, NODE, other, former)
    merger.now_ns += KEPT_NS
    with pytest.raises(ArchiveFenced):
        merger.run(writer.manifest)
    assert objects_in(writer.store) == objects


@pytest.mark.parametrize("fault", FAULTS)
def test_each_call_of_the_store_fails_and_the_next_attempt_goes_on(
    contents: list[bytes], tmp_path: Path, fault: str
) -> None:
    for at in range(1000):
        writer = ArchiveWriter(f"memory://{uuid.uuid4().hex}")
        writer.archive(dict(enumerate(contents[:FEW])))
        store = FaultyStore(writer.store, at, fault)
        owner = writer.manifest.head.owner
        manifest = ManifestWriter.own(FaultyStore(writer.store), NODE, owner, owner)
        manifest._store = store  # the first look at the head is not what is tried
        merger = Merger(store)
        for _ in range(4):
            try:
                merger.sweep(manifest)
            except ArchiveError:
                check_whole(writer.store, tmp_path, FEW)
            merger.now_ns += PAUSE_NS
        check_whole(writer.store, tmp_path, FEW)
        rows = rows_in(writer.store)
        assert [row.pack is not None for row in rows] == [True] * PER_PACK + [False]
        named = {row.pack.key.rpartition("/")[2] for row in rows if row.pack is not None}
        last = f"{FEW - 1:020d}.0.qseg"
        assert objects_in(writer.store) == named | {last, f"{last}.crc"}
        if len(store.calls) <= at:
            assert at > 15
            return
    raise AssertionError("it never ends")


# --- kills ---------------------------------------------------------------------------------------------------------------


def _live(url: str, at: int, moment: str) -> bool:
    """Merge and sweep in a process that is killed at one of its calls to the store. Returns whether it was."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            store = DeadlyStore(open_store(url), at, moment)
            head = read_head(store, NODE)
            assert head is not None
            Merger(store).sweep(ManifestWriter.own(store, NODE, head.owner, head.owner))
            code = 0
        finally:
            os._exit(code)
    _, status = os.waitpid(pid, 0)
    assert os.WIFSIGNALED(status) or os.WEXITSTATUS(status) == 0
    return os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL


@pytest.mark.parametrize("moment", MOMENTS)
def test_killed_at_each_call_it_goes_on_and_no_bundle_is_missing_or_twice(
    contents: list[bytes], tmp_path: Path, moment: str
) -> None:
    for at in range(1000):
        url = f"file://{tmp_path}/archive-{at}"
        writer = ArchiveWriter(url)
        writer.archive(dict(enumerate(contents[:FEW])))
        writer.store.close()
        was_killed = _live(url, at, moment)
        store = open_store(url)
        check_whole(store, tmp_path, FEW)
        assert not _live(url, -1, BEHIND)
        check_whole(store, tmp_path, FEW)
        rows = rows_in(store)
        assert [row.pack is not None for row in rows] == [True] * PER_PACK + [False]
        assert sum(name.endswith(".qpack") for name in objects_in(store)) == 1, "the same object is written again"
        store.close()
        if not was_killed:
            assert at > 15
            return
    raise AssertionError("it never ends")


def test_merged_parts_keep_the_version_that_packs_need(writer: ArchiveWriter) -> None:
    Merger(writer.store).run(writer.manifest)
    (stream,) = writer.manifest.head.streams
    part = read_part(writer.store, stream.parts[0])
    assert part.version == PACKED_VERSION
    plain = type(part)(topic=part.topic, incarnation=part.incarnation, core=part.core)
    assert merged([plain, part]).version == PACKED_VERSION
