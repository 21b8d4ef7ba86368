"""Clients of an archiver whose archive somebody has changed: objects replaced, the head deleted."""

from __future__ import annotations

import pytest

from quiver_actors.archive.keys import crc_key
from quiver_actors.archive.reading.archive import Archive
from quiver_actors.archive.reading.contents import NodeContents
from quiver_actors.archive.serving import ArchiveReads
from quiver_actors.base.protocol.archive_messages import ListArchived, OpenArchived, RetiredCore
from quiver_actors.base.rights import Caller
from quiver_actors.client.archive_door import ArchiveDoor
from quiver_actors.client.archived_reader import ArchivedReader, ArchivedSegment
from quiver_actors.errors import ChecksumMismatch, NotStored, StorageUnavailable
from quiver_actors.store.segment.ranged import RangedReader
from tests.support.archived import INCARNATION, NODE
from tests.unit.archive.test_serving import USERS, Served, door, numbers, request, served

__all__ = ["door", "served"]
SEGMENT = ArchivedSegment("segment 0", 3, 3, True, lambda _: "")


def test_what_was_replaced_by_another_segment_is_none_whoever_asked_first(served: Served, door: ArchiveDoor) -> None:
    key = served.writer.key(0)
    for each in (key, crc_key(key)):
        served.writer.store.delete(each)
    served.writer.upload(0, served.contents[1])
    with pytest.raises(NotStored):
        door.opened(request(0, -1))
    with pytest.raises(ChecksumMismatch):
        door.opened(request(0))


def test_an_archive_whose_head_was_deleted_is_unavailable_and_nothing_is_lost(
    served: Served, door: ArchiveDoor
) -> None:
    served.writer.store.delete(f"{NODE}/manifest.head")
    with pytest.raises(StorageUnavailable, match=r"manifest\.head"):
        door.listed("default", 0, INCARNATION, 0)


@pytest.mark.parametrize("user", [Caller.OWNER, Caller.GUEST])
@pytest.mark.parametrize("kind", [ListArchived, OpenArchived])
def test_what_a_former_topic_of_the_name_has_left_is_the_operators(
    served: Served, user: Caller, kind: type[ListArchived] | type[OpenArchived]
) -> None:
    """The owner of the present one, and its guests, may not be those of the former one."""
    present = "fedcba9876543210"
    cores = [RetiredCore(0, present, 0, 0)]
    reads = ArchiveReads(served.writer.store, NODE, lambda: served.catalogue, served.files, lambda topic: cores)
    former, of_present = ((kind("default", 0, each, 0)) for each in (INCARNATION, present))
    with pytest.raises(StorageUnavailable, match="former topic"):
        reads.check(USERS[user], former)
    reads.check(USERS[user], of_present)
    reads.check(USERS[Caller.OPERATOR], former)


DAMAGES = {
    "head": f"{NODE}/manifest.head",
    "part": f"{NODE}/manifest.parts",
}


@pytest.mark.parametrize("what", DAMAGES)
def test_a_damaged_manifest_is_unavailable_and_no_bundle_counts_as_damaged_for_it(
    served: Served, door: ArchiveDoor, what: str
) -> None:
    """A reader took it for the damage of one copy, and asked for the next one without an end."""
    (key,) = [info.key for info in served.writer.store.objects(NODE) if info.key.startswith(DAMAGES[what])]
    whole = served.writer.store.get(key)
    assert whole is not None
    served.writer.store.put(key, [b"\xffjunk"], 5)
    reader = ArchivedReader(SEGMENT, lambda copy: RangedReader(door.opened(request(0, copy))))
    for _ in range(2):
        with pytest.raises(StorageUnavailable, match="quiver archive repair"):
            numbers(reader)
    with pytest.raises(StorageUnavailable, match="quiver archive repair"):
        door.listed("default", 0, INCARNATION, 0)
    served.writer.store.put(key, [whole.content], len(whole.content))
    assert numbers(reader) == [0, 1, 2]


@pytest.mark.parametrize("what", DAMAGES)
def test_a_segment_that_is_damaged_beside_a_damaged_manifest_is_told(served: Served, what: str) -> None:
    store = served.writer.store
    with Archive(store, NodeContents(store, NODE), str(served.run_dir), 1 << 30) as archive:
        archive.segments("default")
        for info in list(store.objects(NODE)):
            if info.key.startswith(DAMAGES[what]) or info.key == served.writer.key(0):
                store.put(info.key, [bytes(info.size_bytes)], info.size_bytes)
        with pytest.raises(ChecksumMismatch):
            [bundle.batch for bundle in archive.read("default", 0)]
