"""`open_archive` on real segments in a real directory: the values of `Client.read`, holes told with their reason, damage always found."""

from __future__ import annotations

import gc
from collections.abc import Iterator, Mapping
from pathlib import Path

import msgspec
import pyarrow as pa
import pytest

import quiver_actors
from quiver_actors.archive.expiry import expire_stream
from quiver_actors.archive.keys import crc_key
from quiver_actors.archive.manifest import Part
from quiver_actors.archive.manifest_store import read_parts
from quiver_actors.archive.reading.archive import Archive
from quiver_actors.base.model import BundleId
from quiver_actors.client.bundle import StoredBundle
from quiver_actors.errors import (
    ChecksumMismatch,
    ConfigError,
    DataLost,
    FormatError,
    NotStored,
    UnknownSlot,
    UnknownTopic,
    UsageError,
)
from tests.support.archived import INCARNATION, NODE, ArchiveWriter, hole, sealed_segments

SEGMENTS, BUNDLES = 4, 5

Values = tuple[BundleId, Mapping[int, pa.RecordBatch], int | None, int | None, dict[str, str], bytes | None]


def bundle(segment_seq: int, index: int) -> dict[str | int, pa.RecordBatch]:
    rows = 10 + index
    return {
        1: pa.record_batch({"id": range(rows), "name": [f"{segment_seq}-{index}"] * rows}),
        2: pa.record_batch({"kind": pa.array(["a", "b"] * rows).dictionary_encode()}),
    }


class Archived:
    """Segments that were archived, as files and as values of the store that they came from."""

    def __init__(self, directory: Path) -> None:
        pushed = [[bundle(seq, index) for index in range(BUNDLES)] for seq in range(SEGMENTS)]
        self.contents = sealed_segments(directory / "store", pushed)
        with quiver_actors.open(directory / "store") as store:
            self.values = [values(each) for each in store.read("default", 0)]
        self.directory = directory / "archive"
        self.url = f"file://{self.directory}"
        self.writer = ArchiveWriter(self.url)

    def between(self, start: tuple[int, int], end: tuple[int, int]) -> list[Values]:
        return [each for each in self.values if start <= each[0][2:] < end]

    def path(self, key: str) -> Path:
        return self.directory / key


def values(found: StoredBundle) -> Values:
    return (
        found.bundle_id,
        dict(found.slots),
        found.ingestion_unix_ns,
        found.item_count,
        found.trace_context,
        found.incarnation,
    )


def at(segment_seq: int, index: int) -> BundleId:
    return BundleId("default", 0, segment_seq, index)


@pytest.fixture
def archived(tmp_path: Path) -> Archived:
    return Archived(tmp_path)


@pytest.fixture
def archive(archived: Archived) -> Iterator[Archive]:
    archived.writer.archive(dict(enumerate(archived.contents)))
    with quiver_actors.open_archive(archived.url) as opened:
        yield opened


def test_it_reads_what_a_client_reads(archived: Archived, archive: Archive) -> None:
    assert [values(each) for each in archive.read("default", 0)] == archived.values
    assert archive.node == NODE
    assert archive.nodes() == [NODE]
    assert list(archive.topics()) == ["default"]
    assert archive.incarnations("default", 0) == [INCARNATION]
    assert archive.gaps() == []
    assert [info.segment_seq for info in archive.segments()[0]] == list(range(SEGMENTS))
    assert archive.readable()[0].sealed == archive.segments()[0]


@pytest.mark.parametrize(
    ("start", "end"), [((0, 0), (0, 1)), ((1, 2), (3, 0)), ((1, 4), (2, 1)), ((3, 4), (3, 5)), ((2, 0), (2, 0))]
)
def test_ranges_are_read_without_a_gap_or_a_duplicate(
    archived: Archived, archive: Archive, start: tuple[int, int], end: tuple[int, int]
) -> None:
    found = [values(each) for each in archive.read("default", 0, at(*start), at(*end))]
    assert found == archived.between(start, end)


def test_slots_and_columns_are_chosen_as_with_a_client(archive: Archive) -> None:
    found = next(archive.read("default", 0, slots=[1], columns={1: ["name"]}))
    assert {slot: batch.schema.names for slot, batch in found.slots.items()} == {1: ["name"]}
    with pytest.raises(UsageError, match="slot 2 is not among the slots"):
        found[2]


def test_a_hole_is_told_with_its_reason_bundle_by_bundle(archived: Archived) -> None:
    contents = archived.contents
    holes = [hole(1, 0, BUNDLES, "evicted"), hole(3, reason="expired")]
    archived.writer.archive({0: contents[0], 2: contents[2]}, holes)
    with quiver_actors.open_archive(archived.url) as archive:
        found = list(archive.read("default", 0))
        ids = [each.bundle_id[2:] for each in found]
        assert ids == [(seq, index) for seq in (0, 1, 2) for index in range(BUNDLES)] + [(3, 0)]
        for each in found:
            if each.bundle_id.segment_seq in (0, 2):
                assert values(each) == archived.between(each.bundle_id[2:], (9, 0))[0]
            else:
                reason = "evicted" if each.bundle_id.segment_seq == 1 else "expired"
                with pytest.raises(DataLost, match=rf"is not archived \({reason}\)"):
                    each.slots  # noqa: B018 - a property that raises
                with pytest.raises(DataLost):
                    each.incarnation  # noqa: B018
        assert [(gap.segment_seq, gap.bundle_count, gap.reason) for gap in archive.gaps()] == [
            (1, BUNDLES, "evicted"),
            (3, None, "expired"),
        ]


@pytest.mark.parametrize("left", [0, 1])
def test_what_has_expired_in_the_archive_is_told(archived: Archived, left: int) -> None:
    writer = archived.writer
    writer.archive(dict(enumerate(archived.contents)))
    newest = [
        each.last_ingestion_unix_ns for each in next(read_parts(writer.store, writer.manifest.head.streams[0])).segments
    ]
    expire_stream(writer.store, writer.manifest, writer.manifest.head.streams[0], newest[SEGMENTS - 1 - left] + 1)
    with quiver_actors.open_archive(archived.url) as archive:
        expired, *others = archive.read("default", 0, at(0, 0))
        assert expired.bundle_id == at(0, 0)
        assert [values(each) for each in others] == archived.between((SEGMENTS - left, 0), (9, 0))
        with pytest.raises(DataLost, match=r"is not archived \(archive_expired\)"):
            expired.slots  # noqa: B018 - a property that raises


def test_parts_that_the_manifest_does_not_name_any_more_are_forgotten(archived: Archived) -> None:
    content = archived.contents[0]
    archived.writer.archive({0: content})
    gc.collect()
    before = sum(isinstance(each, Part) for each in gc.get_objects())  # those of other tests
    with quiver_actors.open_archive(archived.url) as archive:
        for segment_seq in range(1, 40):
            archived.writer.archive({segment_seq: content})
            archive.refresh()
            assert len(archive.segments()[0]) == segment_seq + 1
        named = len(archived.writer.manifest.head.streams[0].parts)
        assert sum(isinstance(each, Part) for each in gc.get_objects()) <= before + named


def test_what_was_gone_before_the_archiver_came_is_told(archived: Archived) -> None:
    archived.writer.archive({1: archived.contents[1], 3: archived.contents[3]})
    with quiver_actors.open_archive(archived.url) as archive:
        found = list(archive.read("default", 0, at(0, 0)))
        assert [each.bundle_id[2:] for each in found] == [
            (0, 0),
            *((1, index) for index in range(BUNDLES)),
            (2, 0),
            *((3, index) for index in range(BUNDLES)),
        ]
        for each in (found[0], found[1 + BUNDLES]):
            with pytest.raises(DataLost, match=r"is not archived \(never_archived\)"):
                each.slots  # noqa: B018
        assert next(archive.read("default", 0)).bundle_id == at(1, 0)
        assert [(gap.segment_seq, gap.bundle_count, gap.reason) for gap in archive.gaps()] == [
            (2, None, "never_archived")
        ]
        assert [each.bundle_id for each in archive.read("default", 0, at(2, 3), at(3, 1))] == [at(2, 3), at(3, 0)]


def test_what_is_not_archived_is_refused_and_what_was_never_used_is_passed_over(archived: Archived) -> None:
    first, behind = (archived.writer.upload(seq, archived.contents[seq]) for seq in (0, 2))
    archived.writer.record(2, [first, msgspec.structs.replace(behind, position_start=first.position_end)])
    with quiver_actors.open_archive(archived.url) as archive:
        assert [each.bundle_id.segment_seq for each in archive.read("default", 0)] == [0] * BUNDLES + [2] * BUNDLES
        for end in ((3, 1), (2, BUNDLES + 1)):
            with pytest.raises(NotStored):
                archive.read("default", 0, None, at(*end))
        for segment_seq in (1, 3):
            with pytest.raises(NotStored):
                archive.read_segment(0, "default", segment_seq)
            with pytest.raises(NotStored):
                archive.read_part(0, "default", segment_seq, 0, 1)
        archived.writer.record(3, [archived.writer.upload(3, archived.contents[3])])
        with pytest.raises(NotStored):
            archive.read("default", 0, None, at(3, 1))
        archive.refresh()
        assert [each.bundle_id for each in archive.read("default", 0, at(3, 0), at(3, 1))] == [at(3, 0)]


def test_what_lies_behind_a_gap_of_the_archive_is_not_shown_yet(archived: Archived) -> None:
    uploaded = [archived.writer.upload(seq, archived.contents[seq]) for seq in (0, 2)]
    archived.writer.record(0, uploaded)
    with quiver_actors.open_archive(archived.url) as archive:
        assert {each.bundle_id.segment_seq for each in archive.read("default", 0)} == {0}
        assert [info.segment_seq for info in archive.segments()[0]] == [0]


def test_slots_have_the_names_of_the_topic(archived: Archived) -> None:
    archived.writer.slots = {"page": 1, "kind": 2}
    archived.writer.archive({0: archived.contents[0]})
    with quiver_actors.open_archive(archived.url) as archive:
        assert archive.topics()["default"].slots == {"page": 1, "kind": 2}
        found = next(archive.read("default", 0, slots=["page"]))
        assert found["page"] == bundle(0, 0)[1]
        with pytest.raises(UnknownSlot):
            archive.read("default", 0, slots=["pages"])


def test_wrong_calls_say_what_is_wrong(archived: Archived, archive: Archive) -> None:
    with pytest.raises(UnknownTopic, match="did you mean 'default'"):
        archive.read("defualt", 0)
    with pytest.raises(UsageError, match="has nothing of topic 'default' for core 7"):
        archive.read("default", 7)
    with pytest.raises(UsageError, match="is not of topic 'default' and core 0"):
        archive.read("default", 0, BundleId("default", 1, 0, 0))
    with pytest.raises(UsageError, match="no archive of node 'other'; nodes there: node-a"):
        quiver_actors.open_archive(archived.url, node="other")
    with pytest.raises(UsageError, match="is not a directory"):
        quiver_actors.open_archive(f"{archived.url}/nowhere")
    assert not (archived.directory / "nowhere").exists()
    with pytest.raises(ConfigError):
        quiver_actors.open_archive("ftp://host/path")


def test_with_several_nodes_one_is_named(archived: Archived, archive: Archive) -> None:
    ArchiveWriter(archived.url, node="node-b").archive({0: archived.contents[0]})
    with pytest.raises(UsageError, match=r"several nodes \(node-a, node-b\)"):
        quiver_actors.open_archive(archived.url)
    with quiver_actors.open_archive(archived.url, node="node-b") as other:
        assert len(list(other.read("default", 0))) == BUNDLES


def test_of_two_incarnations_the_one_written_to_last_is_read(archived: Archived) -> None:
    archived.writer.archive({0: archived.contents[0]})
    later = ArchiveWriter(archived.url, node="node-b")
    archived.writer.stream = later.stream._replace(incarnation="fedcba9876543210")
    archived.writer.archive({0: archived.contents[2]})
    with quiver_actors.open_archive(archived.url, node=NODE) as archive:
        assert values(next(archive.read("default", 0)))[1] == bundle(2, 0)
        first = next(archive.read("default", 0, incarnation=INCARNATION))
        assert values(first)[1] == bundle(0, 0)


# --- damage ------------------------------------------------------------------------------------------------------------------


def test_a_flip_of_any_byte_of_a_segment_or_its_checksums_is_found(tmp_path: Path) -> None:
    (content,) = sealed_segments(tmp_path / "store", [[pa.record_batch({"id": [1]})]])
    writer = ArchiveWriter(f"file://{tmp_path}/archive")
    writer.archive({0: content})
    for key in (writer.key(0), crc_key(writer.key(0))):
        path = tmp_path / "archive" / key
        whole = path.read_bytes()
        for place in range(len(whole)):
            path.write_bytes(whole[:place] + bytes([whole[place] ^ 1 << place % 8]) + whole[place + 1 :])
            with quiver_actors.open_archive(f"file://{tmp_path}/archive") as archive:
                found = next(archive.read("default", 0))
                with pytest.raises(FormatError):
                    found.slots  # noqa: B018
        path.write_bytes(whole)


def test_damage_is_read_from_another_generation(archived: Archived, archive: Archive) -> None:
    archived.writer.upload(1, archived.contents[1], generation=1)
    path = archived.path(archived.writer.key(1))
    whole = path.read_bytes()
    path.write_bytes(whole[:3000] + b"\0" * 64 + whole[3064:])
    assert [values(each) for each in archive.read("default", 0)] == archived.values
    path.unlink()
    archive.refresh()
    with quiver_actors.open_archive(archived.url) as again:
        assert [values(each) for each in again.read("default", 0)] == archived.values


def test_a_segment_of_a_copy_of_the_data_directory_is_no_copy_of_the_segment(
    archived: Archived, archive: Archive, tmp_path: Path
) -> None:
    others = sealed_segments(tmp_path / "copy", [[bundle(7, index) for index in range(BUNDLES)]])
    archived.writer.upload(1, others[0], generation=1)
    archived.path(archived.writer.key(1)).unlink()
    with pytest.raises(FormatError, match="is missing"):
        next(archive.read("default", 0, at(1, 0))).slots  # noqa: B018


def test_damage_without_another_copy_raises_and_the_rest_is_read(archived: Archived, archive: Archive) -> None:
    archived.path(archived.writer.key(1)).write_bytes(bytes(len(archived.contents[1])))
    for found in archive.read("default", 0):
        if found.bundle_id.segment_seq == 1:
            with pytest.raises(ChecksumMismatch, match=r"object node-a/default/.* is damaged"):
                found.slots  # noqa: B018
        else:
            assert values(found) == archived.between(found.bundle_id[2:], (9, 0))[0]


def test_a_missing_object_is_told(archived: Archived, archive: Archive) -> None:
    archived.path(crc_key(archived.writer.key(1))).unlink()
    with pytest.raises(FormatError, match="is missing"):
        next(archive.read("default", 0, at(1, 0))).slots  # noqa: B018


def test_a_damaged_manifest_is_told(archived: Archived) -> None:
    archived.writer.archive({0: archived.contents[0]})
    (part,) = (archived.directory / NODE / "manifest.parts").iterdir()
    part.write_bytes(part.read_bytes().replace(b'"bundle_count":5', b'"bundle_count":4'))
    with quiver_actors.open_archive(archived.url) as archive, pytest.raises(ChecksumMismatch):
        archive.segments()
