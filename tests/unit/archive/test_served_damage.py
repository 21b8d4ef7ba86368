"""Clients of an archiver whose archive somebody has changed: objects replaced, the head deleted."""

from __future__ import annotations

import pytest

from quiver_actors.archive.keys import crc_key
from quiver_actors.client.archive_door import ArchiveDoor
from quiver_actors.errors import ChecksumMismatch, NotStored, StorageUnavailable
from tests.support.archived import INCARNATION, NODE
from tests.unit.archive.test_serving import Served, door, request, served

__all__ = ["door", "served"]


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
