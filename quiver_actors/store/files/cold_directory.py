"""The directory of one engine on the cold disk: told by its identity file from an empty mount point, and what is done in it. Blocking.

    <tier.cold_dir>/<topic>/core_<n>/<cold id>/quiver.cold-id       identity file
    <tier.cold_dir>/<topic>/core_<n>/<cold id>/<16 digits>.qseg     cold segments, byte for byte as they were in segments/

Runs on the thread for the cold disk. The disk is opened for each piece of work and closed after it: a root directory that stays open would
keep an operator from unmounting it. A file that is missing is lost only where the identity file is there.
"""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import AbstractContextManager

from quiver_actors.errors import DiskError, FormatError
from quiver_actors.store.disk.posix import PosixDisk
from quiver_actors.store.disk.protocol import Disk, DiskFile, read_whole, write_atomically
from quiver_actors.store.files.cold_list import COLD_ID_BYTES
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
ColdDisks = Callable[[str], AbstractContextManager[Disk]]
"""Opens the disk whose root is that directory. Raises DiskError: it is not there."""


class ColdDiskAway(DiskError):
    """The cold directory is not there, or is another one: it was unmounted or moved. Its files are where they were."""

    def __init__(self, path: str, why: str) -> None:
        super().__init__("open", path, errno.ESTALE, f"{why}: mount it, or bring it back")


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
    """

    def __init__(self, disks: ColdDisks, root: str, paths: EnginePaths, cold_id: bytes) -> None:
        self.root = root
        self.cold_id = cold_id
        self._disks = disks
        self._directory = f"{paths.root}/{cold_id.hex()}"

    def __str__(self) -> str:
        return f"{self.root}/{self._directory}"

    def segment(self, segment_seq: int) -> str:
        """Path of a segment below the root."""
        return f"{self._directory}/{segment_name(segment_seq)}"

    @contextlib.contextmanager
    def opened(self, *, makes: bool = False) -> Generator[Disk, None, None]:
        """Open the disk and prove that the directory is this engine's.

        Args:
            makes: make the directory where there is none: nothing lies in it yet.

        Raises:
            ColdDiskAway: it is not there.
            DiskError: it cannot be looked at, or it is in the data directory of a node.
        """
        with self._disks(self.root) as disk:
            identity = f"{self._directory}/{IDENTITY_NAME}"
            if makes and not disk.exists(identity):
                if disk.exists(VERSION_FILE):
                    # That node would find a directory there which nobody can explain to it.
                    raise DiskError(
                        "open", self.root, errno.EEXIST, "a node has its data there: name another tier.cold_dir"
                    )
                disk.make_directory(self._directory)
                write_atomically(disk, identity, IDENTITY.pack(cold_id=self.cold_id))
                disk.sync_directory(self._directory)
            self._prove(disk, identity)
            yield disk

    def _prove(self, disk: Disk, identity: str) -> None:
        try:
            content = read_whole(disk, identity, IDENTITY_TABLE.size)
            IDENTITY.open(content)
        except DiskError as error:
            if error.errno not in (errno.ENOENT, errno.ENOTDIR):
                raise
            raise ColdDiskAway(str(self), f"{IDENTITY_NAME} is not in it") from error
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
        """Delete the identity file: the directory is nobody's from then on."""
        disk.unlink(f"{self._directory}/{IDENTITY_NAME}")
        self.sync(disk)

    def listed(self, disk: Disk) -> list[int]:
        """Numbers of the segments of which there is a file, whole or not."""
        numbers = (segment_seq_of(name.removesuffix(".tmp")) for name in disk.list_directory(self._directory))
        return sorted({number for number in numbers if number is not None})
