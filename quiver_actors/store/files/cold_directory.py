"""The directory of one engine on the cold disk: told by its identity file from an empty mount point, and what is done in it. Blocking.

    <tier.cold_dir>/<topic>/core_<n>/<cold id>/quiver.cold-id       identity file
    <tier.cold_dir>/<topic>/core_<n>/<cold id>/quiver.cold-owner    whose the directory is; see `cold_owner`
    <tier.cold_dir>/<topic>/core_<n>/<cold id>/quiver.cold-lock     locked by whoever changes something in the directory
    <tier.cold_dir>/<topic>/core_<n>/<cold id>/<16 digits>.qseg     cold segments, byte for byte as they were in segments/

Runs on the thread for the cold disk. The disk is opened for each piece of work and closed after it: a root directory that stays open would
keep an operator from unmounting it. A file that is missing is lost only where the identity file is there, and only for the owner.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import AbstractContextManager

from quiver_actors.errors import DiskError, FormatError
from quiver_actors.store.disk.posix import PosixDisk
from quiver_actors.store.disk.protocol import Disk, DiskFile, read_whole, write_atomically
from quiver_actors.store.files.cold_list import COLD_ID_BYTES
from quiver_actors.store.files.cold_owner import (
    OWNER_NAME,
    OWNER_TABLE,
    ColdOwner,
    ColdTaken,
    HotOwner,
    decode_owner,
    taken_by,
    write_owner,
)
from quiver_actors.store.files.data_version import VERSION_FILE
from quiver_actors.store.files.paths import EnginePaths, segment_name, segment_seq_of
from quiver_actors.store.format.fields import Field, FieldTable
from quiver_actors.store.format.framing import Framing, Place

IDENTITY_NAME = "quiver.cold-id"
IDENTITY_TABLE = FieldTable(
    "identity of a cold directory",
    Field("magic", "8s", constant=b"QUIVCOLD"),
    Field("version", "H", constant=1),
    Field("size", "H", constant=32),
    Field("cold_id", f"{COLD_ID_BYTES}s", "the same as in the list of cold segments"),
    Field("crc32", "I", "CRC-32 of the bytes before it"),
)
IDENTITY = Framing(IDENTITY_NAME, IDENTITY_TABLE, Place.SIZE)
LOCK_NAME = "quiver.cold-lock"
LOST_NAME = "quiver.cold-lost"
"""An empty file by which an operator says that what was in the directory is lost for good; the next start of work there deletes it."""
STRAY_SUFFIX = ".stray"
"""Behind the name of a file that somebody has put in the place of a cold segment."""
_NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL)
"""Errors by which a file system says that it has no locks."""
ColdDisks = Callable[[str], AbstractContextManager[Disk]]
"""Opens the disk whose root is that directory. Raises DiskError: it is not there."""


def cold_id_of(name: str) -> bytes | None:
    """The 16 bytes that name an engine's directory on the cold disk; None for any other name."""
    is_one = len(name) == 2 * COLD_ID_BYTES and not set(name) - set("0123456789abcdef")
    return bytes.fromhex(name) if is_one else None


class ColdDiskAway(DiskError):
    """The cold directory is not there, or is another one: it was unmounted or moved. Its files are where they were."""

    def __init__(self, path: str, why: str, unless: str = "") -> None:
        super().__init__("open", path, errno.ESTALE, f"{why}: mount it, or bring it back{unless}")


@contextlib.contextmanager
def posix_cold_disk(root: str) -> Iterator[Disk]:
    """The disk below a directory of the file system."""
    disk = PosixDisk(root)
    try:
        yield disk
    finally:
        disk.close()


class ColdDirectory:
    """Names one engine's directory below a cold root, and opens it.

    Attributes:
        root: the value of `tier.cold_dir`.
        cold_id: 16 bytes that name the directory.
        token: under which the calling process has taken the directory over; empty: it has not.
    """

    def __init__(self, disks: ColdDisks, root: str, paths: EnginePaths, cold_id: bytes, token: bytes = b"") -> None:
        self.root = root
        self.cold_id = cold_id
        self.token = token
        self._disks = disks
        self._directory = f"{paths.root}/{cold_id.hex()}"

    def __str__(self) -> str:
        return f"{self.root}/{self._directory}"

    def segment(self, segment_seq: int) -> str:
        """Path of a segment below the root."""
        return f"{self._directory}/{segment_name(segment_seq)}"

    @contextlib.contextmanager
    def opened(self) -> Generator[Disk, None, None]:
        """Open the disk for reading and prove that the directory is this engine's. It may be another data directory's by now.

        Raises:
            ColdDiskAway: it is not there.
            DiskError: it cannot be looked at.
        """
        with self._disks(self.root) as disk:
            self._prove(disk)
            yield disk

    @contextlib.contextmanager
    def owned(self) -> Generator[Disk, None, None]:
        """Open the disk for changes, which nobody else makes meanwhile.

        Raises:
            ColdTaken: the calling process has not taken the directory over, or another one has since.
            And as `opened`.
        """
        with self.opened() as disk, self._locked(disk):
            owner = self.owner(disk)
            if owner is None or owner.token != self.token:
                raise ColdTaken(str(self), "another data directory has taken this cold directory over")
            yield disk

    @contextlib.contextmanager
    def taking(self, hot: HotOwner, *, makes: bool = False) -> Generator[Disk, None, None]:
        """Open the disk for taking the directory over, or deleting it, while nobody else changes anything.

        Args:
            hot: what the data directory says.
            makes: make the directory where there is none: nothing lies in it yet.

        Raises:
            ColdTaken: it is another data directory's.
            DiskError: it is in the data directory of a node.
            And as `opened`.
        """
        self._make(nothing_is_there=makes)
        with self.opened() as disk, self._locked(disk):
            self.prove_own(disk, hot)
            yield disk

    def prove_own(self, disk: Disk, hot: HotOwner) -> None:
        """Raise ColdTaken if a data directory that says `hot` may not take the directory over."""
        why = taken_by(self.owner(disk), *hot)
        if why:
            raise ColdTaken(str(self), why)

    def owner(self, disk: Disk) -> ColdOwner | None:
        """What the directory says of its owner; None: it is nobody's. Raises ColdTaken where that cannot be read."""
        try:
            found = decode_owner(read_whole(disk, self._owner_path, OWNER_TABLE.size))
        except DiskError as error:
            if error.errno != errno.ENOENT:
                raise
            return None
        except FormatError as error:
            raise ColdTaken(str(self), f"{OWNER_NAME} cannot be read ({error})") from error
        return found

    def write_owner(self, disk: Disk, owner: ColdOwner) -> None:
        """Say whose the directory is; durable on return."""
        write_owner(disk, self._owner_path, owner)

    @property
    def _owner_path(self) -> str:
        return f"{self._directory}/{OWNER_NAME}"

    @property
    def _identity_path(self) -> str:
        return f"{self._directory}/{IDENTITY_NAME}"

    def _make(self, *, nothing_is_there: bool) -> None:
        """Make the directory, if nothing was ever moved there, or an operator says that what was there is lost."""
        lost = f"{self._directory}/{LOST_NAME}"
        with self._disks(self.root) as disk:
            if disk.exists(self._identity_path) or not (nothing_is_there or disk.exists(lost)):
                return
            if disk.exists(VERSION_FILE):
                # That node would find a directory there which nobody can explain to it.
                raise DiskError(
                    "open", self.root, errno.EEXIST, "a node has its data there: name another tier.cold_dir"
                )
            disk.make_directory(self._directory)
            write_atomically(disk, self._identity_path, IDENTITY.pack(cold_id=self.cold_id))
            disk.unlink(lost)
            disk.sync_directory(self._directory)

    @contextlib.contextmanager
    def _locked(self, disk: Disk) -> Iterator[None]:
        path, has_locks = f"{self._directory}/{LOCK_NAME}", True
        try:
            lock = disk.lock(path)
        except DiskError as error:
            if error.errno not in _NO_LOCKS:
                raise
            lock, has_locks = None, False  # the token alone tells two nodes apart
        if lock is None and has_locks:
            raise DiskError("lock", f"{self.root}/{path}", errno.EAGAIN, "another process works in the directory")
        try:
            yield
        finally:
            if lock is not None:
                lock.release()

    def _prove(self, disk: Disk) -> None:
        try:
            content = read_whole(disk, self._identity_path, IDENTITY_TABLE.size)
            IDENTITY.open(content)
        except DiskError as error:
            if error.errno not in (errno.ENOENT, errno.ENOTDIR):
                raise
            lost = f"; if it is lost for good, make that directory, and an empty file {LOST_NAME} in it"
            raise ColdDiskAway(str(self), f"{IDENTITY_NAME} is not in it", lost) from error
        except FormatError as error:
            raise ColdDiskAway(str(self), f"its identity cannot be read ({error})") from error
        if IDENTITY_TABLE.unpack(content)["cold_id"] != self.cold_id:
            raise ColdDiskAway(str(self), "it is another engine's")

    def sync(self, disk: Disk) -> None:
        """Make the names in the directory durable."""
        disk.sync_directory(self._directory)

    def open_segment(self, disk: Disk, segment_seq: int) -> DiskFile | None:
        """Open a segment for reading; None: it was deleted, as the rest of the directory is there. Raises DiskError."""
        try:
            return disk.open_read(self.segment(segment_seq))
        except DiskError as error:
            if error.errno != errno.ENOENT:
                raise
        with self.opened() as again:
            return again.open_read(self.segment(segment_seq)) if again.exists(self.segment(segment_seq)) else None

    def delete(self, disk: Disk, segment_seqs: Iterable[int]) -> None:
        """Delete segments; those that are gone count as deleted. Durable on return."""
        for segment_seq in segment_seqs:
            disk.unlink(self.segment(segment_seq))
            disk.unlink(self.segment(segment_seq) + ".tmp")
        self.sync(disk)

    def forget(self, disk: Disk) -> None:
        """Delete what names the directory and its owner: it is nobody's from then on."""
        for path in (self._owner_path, f"{self._directory}/{LOCK_NAME}", self._identity_path):
            disk.unlink(path)
        self.sync(disk)

    def set_aside(self, disk: Disk, segment_seq: int) -> str:
        """Give a file that is not the segment it is named after another name, under which nobody looks for one. Returns its path."""
        path = self.segment(segment_seq)
        names = (path + STRAY_SUFFIX + (f".{number}" if number else "") for number in itertools.count())
        free = next(name for name in names if not disk.exists(name))
        disk.rename(path, free)
        self.sync(disk)
        return f"{self.root}/{free}"

    def clear(self, disk: Disk, segment_seqs: Iterable[int]) -> list[str]:
        """Delete what is not whole of such segments, and set aside what may be. Returns the paths of these; durable on return."""
        paths = []
        for segment_seq in segment_seqs:
            disk.unlink(self.segment(segment_seq) + ".tmp")
            if disk.exists(self.segment(segment_seq)):
                paths.append(self.set_aside(disk, segment_seq))
        self.sync(disk)
        return paths

    def listed(self, disk: Disk) -> list[int]:
        """Numbers of the segments of which there is a file, whole or not."""
        numbers = (segment_seq_of(name.removesuffix(".tmp")) for name in disk.list_directory(self._directory))
        return sorted({number for number in numbers if number is not None})
