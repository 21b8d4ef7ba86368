"""Identity of this data directory to an archive: a small file in it, and the start of an archiver that becomes the owner.

Owner: the one archiver of the node. The file `quiver.archive` is JSON. What is about to be written into the archive's head is durable
here before, and what was written is noted after; so a start that was killed between the two is told from a copy of the directory.
"""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable
from urllib.parse import unquote

import msgspec

from quiver_actors.archive.fencing import head_gone
from quiver_actors.archive.headless import check_newest, newest_commit
from quiver_actors.archive.keys import head_key
from quiver_actors.archive.manifest import Owner
from quiver_actors.archive.manifest_store import ManifestWriter, read_head
from quiver_actors.errors import DiskError, InvalidFormat
from quiver_actors.store.disk.protocol import Disk, read_whole, write_atomically
from quiver_actors.store.files.paths import ARCHIVE_NAME
from quiver_actors.store.objects.errors import ArchiveRefused, ArchiveUnavailable
from quiver_actors.store.objects.object_store import ObjectChanged, ObjectExists, ObjectStore

RECORD_FILE = ARCHIVE_NAME
_RECORD_BYTES_MAX = 1 << 20


class Place(msgspec.Struct, frozen=True, kw_only=True):
    """What the directory knows of itself in the archive of one URL and node name."""

    url: str
    node: str
    owner: Owner | None = None
    """The owner that the archive's head had last, as far as this directory knows."""
    intent: Owner | None = None
    """The owner that this directory was about to write there."""
    begins_anew: bool = False
    """Whether an operator wants a new archive there, although one has lost its head."""

    def is_of(self, url: str, node: str) -> bool:
        """Whether this is the place of a node at a URL, which may have a `/` at its end, and escapes in its path, or not."""
        return (unquote(self.url).rstrip("/"), self.node) == (unquote(url).rstrip("/"), node)


class OwnRecord(msgspec.Struct, frozen=True, kw_only=True):
    """The content of the file."""

    version: int = 1
    directory: str
    """Random identity of the data directory."""
    places: tuple[Place, ...] = ()

    def place(self, url: str, node: str) -> Place:
        """The place that was kept for a URL and a node, else a new one."""
        found = (each for each in self.places if each.is_of(url, node))
        return next(found, Place(url=url, node=node))

    def with_place(self, place: Place) -> OwnRecord:
        """Return the record with this place in it, instead of the one of the same URL and node."""
        others = tuple(each for each in self.places if not each.is_of(place.url, place.node))
        return msgspec.structs.replace(self, places=(*others, place))


def read_record(disk: Disk) -> OwnRecord:
    """Return the record of a data directory, or a new one if it has none. Raises InvalidFormat, DiskError."""
    try:
        return msgspec.json.decode(read_whole(disk, RECORD_FILE, _RECORD_BYTES_MAX), type=OwnRecord)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InvalidFormat(
            f"{RECORD_FILE} cannot be read: {error}. Move it away and run `quiver archive take-over`: nothing else is in it"
        ) from error
    except DiskError as error:
        if error.errno != errno.ENOENT:
            raise
        return OwnRecord(directory=os.urandom(12).hex())


def write_record(disk: Disk, record: OwnRecord) -> None:
    """Make a record durable. Raises DiskError."""
    write_atomically(disk, RECORD_FILE, msgspec.json.encode(record) + b"\n")
    disk.sync_directory(".")


def become_owner(disk: Disk, store: ObjectStore, node: str) -> ManifestWriter:
    """Become the owner of a node's archive with the next epoch.

    Raises:
        ArchiveFenced: it belongs to another data directory, or to a copy of this one that was started later.
        ArchiveRefused: the store lacks conditional puts. ArchiveError, DiskError, InvalidFormat: store or record cannot be used.
    """
    record = read_record(disk)
    place = record.place(store.url, node)
    newest = newest_commit(store, node)
    head = read_head(store, node)
    if head is not None:
        check_newest(store, node, head.commit, newest)
    if place.intent is not None and head is not None and head.owner == place.intent:
        place = Place(url=store.url, node=node, owner=place.intent)
    if head is None:
        if place.owner is None and not place.begins_anew and newest >= 0:
            raise head_gone(store.url, node)
        prove_conditional_puts(store, node)
    epoch = place.owner.epoch + 1 if place.owner is not None else 1
    intent = Owner(epoch=epoch, directory=record.directory, start=os.urandom(12).hex(), since_unix_ns=time.time_ns())
    place = msgspec.structs.replace(place, intent=intent)
    write_record(disk, record.with_place(place))
    writer = ManifestWriter.own(store, node, intent, place.owner)
    write_record(disk, record.with_place(Place(url=store.url, node=node, owner=intent)))
    store.clear_unfinished(node)
    return writer


def take_over(disk: Disk, store: ObjectStore, node: str) -> Owner | None:
    """Record the present owner of the archive as the predecessor of this directory, whose next archiver takes over.

    Returns:
        The owner so far; None where there is no such archive yet.
    """
    head = read_head(store, node)
    record = read_record(disk)
    owner = None if head is None else head.owner
    place = Place(url=store.url, node=node, owner=owner, begins_anew=head is None)
    write_record(disk, record.with_place(place))
    return owner


def prove_conditional_puts(store: ObjectStore, node: str) -> None:
    """Try whether the store refuses what its conditions forbid. Raises ArchiveRefused: it does not; ArchiveError."""
    key = f"{head_key(node)}.probe-{os.urandom(6).hex()}"
    try:
        version = store.create(key, b"first")
        store.replace(key, b"second", version)
        if _is_done(lambda: store.create(key, b"third"), ObjectExists) or _is_done(
            lambda: store.replace(key, b"third", version), ObjectChanged
        ):
            raise ArchiveRefused(
                f"{store.url} does not keep the conditions of puts (If-None-Match, If-Match): without them two nodes could "
                "overwrite each other's manifest. Use a store that has them; or, if you promise that no other node archives under this "
                "node's name, set archive.single_writer (docs/archive.md)"
            )
    except (ObjectExists, ObjectChanged) as error:
        # Nobody else has this key: a request was sent twice, and the second answer came.
        raise ArchiveUnavailable(f"the conditions of puts could not be tried: {error}") from error
    finally:
        store.delete(key)


def _is_done(call: Callable[[], object], refusal: type[Exception]) -> bool:
    try:
        call()
    except refusal:
        return False
    return True
