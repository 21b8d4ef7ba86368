"""The manifest under owners, lost answers and repeated commits."""

from __future__ import annotations

import uuid
from pathlib import Path

import msgspec
import pytest

from quiver_actors.archive.keys import StreamKey
from quiver_actors.archive.manifest import (
    Head,
    Hole,
    Owner,
    Part,
    Segment,
    decode_head,
    decode_part,
    encode,
    merged,
)
from quiver_actors.archive.manifest_store import (
    SMALL_PARTS_MAX,
    Addition,
    ManifestWriter,
    read_head,
    read_part,
    read_parts,
)
from quiver_actors.errors import ChecksumMismatch, InvalidFormat, UnsupportedVersion
from quiver_actors.store.objects.creation import create_once
from quiver_actors.store.objects.errors import ArchiveFenced, ArchiveUnavailable
from quiver_actors.store.objects.object_store import ObjectExists, ObjectStore
from quiver_actors.store.objects.opening import open_store
from tests.support.faulty_objects import FAULTS, LOST_ANSWER, FaultyStore

STREAM = StreamKey("topic", "17", 0)


def an_owner(epoch: int = 1, directory: str = "here", start: str = "first") -> Owner:
    return Owner(epoch=epoch, directory=directory, start=start, since_unix_ns=5)


def a_segment(segment_seq: int) -> Segment:
    return Segment(
        segment_seq=segment_seq,
        generation=0,
        bundle_count=10,
        row_count=100,
        size_bytes=1000,
        crc32=1,
        etag="etag",
        created_unix_ns=7,
        first_ingestion_unix_ns=segment_seq * 10,
        last_ingestion_unix_ns=segment_seq * 10 + 9,
        index=(8,),
    )


def a_hole(segment_seq: int, noted_unix_ns: int = 3) -> Hole:
    return Hole(
        segment_seq=segment_seq,
        first_bundle=0,
        bundle_count=4,
        row_count=-1,
        reason="evicted",
        noted_unix_ns=noted_unix_ns,
    )


def own(store: ObjectStore) -> ManifestWriter:
    return ManifestWriter.own(store, "node", an_owner(), None)


def rows(store: ObjectStore) -> tuple[list[int], list[int]]:
    """The numbers of the segments and of the holes that a reader finds, in its order."""
    head = read_head(store, "node")
    assert head is not None
    parts = [part for stream in head.streams for part in read_parts(store, stream)]
    return [each.segment_seq for part in parts for each in part.segments], [
        each.segment_seq for part in parts for each in part.holes
    ]


def test_what_is_committed_is_read(store: ObjectStore) -> None:
    writer = own(store)
    writer.commit({STREAM: Addition([a_segment(1), a_segment(2)], [a_hole(0)], 2)})
    writer.commit({STREAM: Addition([a_segment(3)], [], 3)})
    assert rows(store) == ([1, 2, 3], [0])
    head = read_head(store, "node")
    assert head == writer.head
    stream = head.streams[0]
    assert (
        stream.archived_through,
        stream.parts[0].first_ingestion_unix_ns,
        stream.parts[0].last_ingestion_unix_ns,
    ) == (3, 10, 29)


def test_the_same_again_is_recorded_once(store: ObjectStore) -> None:
    writer = own(store)
    for noted_unix_ns in (1, 2):
        writer.commit({STREAM: Addition([a_segment(1), a_segment(2)], [a_hole(0, noted_unix_ns)], 2)})
    writer.commit({STREAM: Addition([a_segment(2), a_segment(3)], [], 3)})
    assert rows(store) == ([1, 2, 3], [0])


def test_many_small_parts_become_one_and_the_old_ones_go(store: ObjectStore) -> None:
    writer = own(store)
    count = 3 * SMALL_PARTS_MAX
    for number in range(count):
        writer.commit({STREAM: Addition([a_segment(number)], [], number)})
    assert len(writer.head.streams[0].parts) <= SMALL_PARTS_MAX + 1
    assert rows(store)[0] == list(range(count))
    before, gone = len(list(store.objects(""))), writer.head.garbage
    assert writer.collect_garbage(["node/other", gone[0]]) == 1
    assert writer.head.garbage == gone[1:]
    assert len(list(store.objects(""))) == before - 1
    assert writer.collect_garbage(gone) == len(gone) - 1 > SMALL_PARTS_MAX - 1
    assert len(list(store.objects(""))) < before
    assert rows(store)[0] == list(range(count))
    assert len(list(store.objects("node/manifest.parts"))) == len(writer.head.streams[0].parts)


def test_a_descriptor_takes_less_than_a_kibibyte() -> None:
    largest = msgspec.structs.replace(
        a_segment(2**62), etag="e" * 40, bundle_count=65_535, index=tuple(range(2**26, 2**26 + 66))
    )
    assert len(msgspec.json.encode(largest)) < 1024


def test_a_second_owner_fences_the_first_one(store: ObjectStore) -> None:
    first = own(store)
    second = ManifestWriter.own(store, "node", an_owner(2, start="second"), an_owner())
    with pytest.raises(ArchiveFenced):
        first.commit({STREAM: Addition([a_segment(1)], [], 1)})
    with pytest.raises(ArchiveFenced):
        first.check_owner()
    with pytest.raises(ArchiveFenced):
        first.commit({})
    second.commit({STREAM: Addition([a_segment(2)], [], 2)})
    assert rows(store) == ([2], [])


def test_who_does_not_know_the_present_owner_becomes_none(store: ObjectStore) -> None:
    own(store)
    for expected in (None, an_owner(start="another"), an_owner(directory="another"), an_owner(2)):
        with pytest.raises(ArchiveFenced):
            ManifestWriter.own(store, "node", an_owner(9, start="mine"), expected)


def test_an_archive_that_is_gone_is_not_begun_anew(store: ObjectStore) -> None:
    with pytest.raises(ArchiveFenced):
        ManifestWriter.own(store, "node", an_owner(2), an_owner(1))
    assert list(store.objects("")) == []


def calls_of_a_commit(store: ObjectStore) -> list[str]:
    faulty = FaultyStore(store)
    writer = ManifestWriter.own(faulty, "node", an_owner(), None)
    writer.commit({STREAM: Addition([a_segment(1)], [a_hole(0)], 1)})
    return faulty.calls


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("at", range(6))
def test_each_call_may_fail_and_the_same_again_gives_one_row(store: ObjectStore, at: int, fault: str) -> None:
    assert calls_of_a_commit(open_store(f"memory://{uuid.uuid4().hex}")) == [
        "get",
        "children",
        "children",
        "create",
        "create",
        "replace",
    ]
    faulty = FaultyStore(store, at, fault)
    for _ in range(3):
        try:
            writer = ManifestWriter.own(faulty, "node", an_owner(), None)
            writer.commit({STREAM: Addition([a_segment(1)], [a_hole(0)], 1)})
            break
        except ArchiveUnavailable:
            pass
    else:
        raise AssertionError("the same call was to succeed at last")
    assert rows(store) == ([1], [0])


def test_a_commit_whose_answer_was_lost_is_not_made_twice(store: ObjectStore) -> None:
    faulty = FaultyStore(store)
    writer = ManifestWriter.own(faulty, "node", an_owner(), None)
    faulty.at, faulty.fault = len(faulty.calls) + 1, LOST_ANSWER
    writer.commit({STREAM: Addition([a_segment(1)], [], 1)})
    assert faulty.calls[-2:] == ["replace", "get"]
    head = read_head(store, "node")
    assert head is not None
    assert (head.commit, head) == (2, writer.head)


def test_an_outage_after_a_lost_answer_is_overcome(store: ObjectStore) -> None:
    class Away(FaultyStore):
        """Loses the answer of one replace, and does not answer the next get."""

        is_away = False

        def replace(self, key, content, version):  # type: ignore[no-untyped-def]
            done = super().replace(key, content, version)
            if not self.is_away:
                self.is_away = True
                raise ArchiveUnavailable("lost")
            return done

        def get(self, key):  # type: ignore[no-untyped-def]
            if self.is_away and self.calls.count("get") < 2:
                self.calls.append("get")
                raise ArchiveUnavailable("away")
            return super().get(key)

    writer = ManifestWriter.own(Away(store), "node", an_owner(), None)
    addition = {STREAM: Addition([a_segment(1)], [a_hole(0)], 1)}
    for _ in range(2):
        with pytest.raises(ArchiveUnavailable):
            writer.commit(addition)
    writer.commit(addition)
    assert rows(store) == ([1], [0])


def test_a_damaged_or_missing_part_is_told(store: ObjectStore) -> None:
    writer = own(store)
    writer.commit({STREAM: Addition([a_segment(1)], [], 1)})
    ref = writer.head.streams[0].parts[0]
    found = store.get(ref.key)
    assert found is not None
    store.replace(ref.key, found.content.replace(b"1000", b"1001"), found.version)
    with pytest.raises(ChecksumMismatch):
        read_part(store, ref)
    store.delete(ref.key)
    with pytest.raises(InvalidFormat):
        read_part(store, ref)


def test_a_newer_manifest_is_refused_and_unknown_fields_are_not() -> None:
    head = Head(node="node", owner=an_owner(), commit=1, commit_id="a")
    with pytest.raises(UnsupportedVersion):
        decode_head(encode(msgspec.structs.replace(head, version=3)))
    plain = msgspec.json.encode(head)
    assert decode_head(plain.replace(b'"node":', b'"colour":"red","node":')) == head, "of a program without checksums"
    with pytest.raises(ChecksumMismatch):
        decode_head(encode(head).replace(b'"commit":1', b'"commit":2'))
    for nonsense in (b"", b"{}", b"[1]", b"\xff", encode(head)[:-10]):
        with pytest.raises(InvalidFormat):
            decode_head(nonsense)
        with pytest.raises(InvalidFormat):
            decode_part(nonsense)


def test_parts_are_merged_in_order_and_each_row_once() -> None:
    def part(*numbers: int) -> Part:
        return Part(
            topic="t",
            incarnation="1",
            core=0,
            segments=tuple(map(a_segment, numbers)),
            holes=tuple(map(a_hole, numbers)),
        )

    assert merged([part(3, 1), part(2, 3)]) == part(1, 2, 3)


def test_a_key_that_holds_another_content_is_not_taken_for_ours(store: ObjectStore) -> None:
    create_once(store, "node/a", b"one")
    create_once(store, "node/a", b"one")
    with pytest.raises(ObjectExists):
        create_once(store, "node/a", b"two")


def test_a_directory_holds_the_manifest_over_a_reopening(tmp_path: Path) -> None:
    url = f"file://{tmp_path}/archive"
    first = open_store(url)
    own(first).commit({STREAM: Addition([a_segment(1)], [], 1)})
    first.close()
    again = open_store(url)
    assert rows(again) == ([1], [])
    again.close()
