"""`quiver.cold-owner`: which data directory may change an engine's directory on the cold disk. Codec, and the rule who may take it over.

    <data_dir>/<topic>/core_<n>/quiver.cold-owner                   the token that this data directory was given last
    <tier.cold_dir>/<topic>/core_<n>/<cold id>/quiver.cold-owner    the token of the data directory that has the cold directory

A copied data directory names the same cold directory as its original. Only one of them may change what lies there: what one is done with
and deletes, the other one may still need. So the cold directory belongs to the data directory that has its token and still is, by its inode
number, the one that was given the token. A copy has the token and another inode number. A snapshot of a whole file system has both: of two
such, that one is the owner which was opened first, because each opening takes the cold directory over under a new random token.

That has three durable steps: the cold file gets the new token and, as the former one, that of the data directory; then the data directory
gets the new token; then the cold file forgets the former one. Cut off anywhere, the owner has one of the two tokens of the cold file.

A cold directory without the file is nobody's: one that a program from before has made, or whose file an operator has deleted. Whoever
is opened next takes it.
"""

from __future__ import annotations

import errno
from typing import NamedTuple

from quiver_actors.errors import DiskError
from quiver_actors.store.disk.protocol import Disk, read_whole, write_atomically
from quiver_actors.store.files.cold_list import COLD_ID_BYTES
from quiver_actors.store.format.fields import Field, FieldTable
from quiver_actors.store.format.framing import DAMAGE, Framing, Place

OWNER_NAME = "quiver.cold-owner"
TOKEN_BYTES = 16
OWNER_TABLE = FieldTable(
    "owner of a cold directory",
    Field("magic", "8s", constant=b"QUIVCOWN"),
    Field("version", "H", constant=1),
    Field("size", "H", constant=72),
    Field("cold_id", f"{COLD_ID_BYTES}s", "the same as in the list of cold segments"),
    Field("token", f"{TOKEN_BYTES}s", "random, another one after each opening"),
    Field("former", f"{TOKEN_BYTES}s", "the token before, until the data directory has the new one; zeroes: none"),
    Field("inode", "Q", "inode number of the engine's directory in the data directory that was given the token"),
    Field("crc32", "I", "CRC-32 of the bytes before it"),
)
OWNER = Framing(OWNER_NAME, OWNER_TABLE, Place.SIZE)
NO_TOKEN = bytes(TOKEN_BYTES)


class ColdOwner(NamedTuple):
    """The contents of the file, on either disk."""

    cold_id: bytes
    token: bytes
    inode: int
    former: bytes = NO_TOKEN

    def encode(self) -> bytes:
        """Return the file."""
        return OWNER.pack(**self._asdict())


class HotOwner(NamedTuple):
    """What a data directory says of itself: the owner in its file, if there is one, and the inode number of the engine's directory now."""

    owner: ColdOwner | None
    inode: int


class ColdTaken(DiskError):
    """The cold directory belongs to another data directory, or nobody can tell whose it is."""

    def __init__(self, directory: str, why: str) -> None:
        super().__init__(
            "take-over",
            directory,
            errno.EBUSY,
            f"{why}. Nothing there is moved or deleted by this node. If no other node uses the directory any more, delete "
            f"{directory}/{OWNER_NAME}; else copy the directory to the same place below another tier.cold_dir, delete {OWNER_NAME} in "
            "the copy, and give this node that tier.cold_dir",
        )


def decode_owner(data: bytes) -> ColdOwner:
    """Read the file. Raises as `Framing.open`."""
    OWNER.open(data)
    fields = OWNER_TABLE.unpack(data)
    return ColdOwner(fields["cold_id"], fields["token"], fields["inode"], fields["former"])


def taken_by(cold: ColdOwner | None, hot: ColdOwner | None, inode: int) -> str:
    """Say why a data directory may not take a cold directory over; empty if it may.

    Args:
        cold: what the cold directory says; None: it is nobody's.
        hot: what the data directory says; None: it has had none.
        inode: the number of the engine's directory in the data directory.
    """
    if cold is None:
        return ""
    if hot is None:
        return "nothing in this data directory says that this cold directory, which has an owner, is its own"
    if hot.token not in (cold.token, cold.former):
        return "another data directory, which is a copy of this one or its original, has this cold directory"
    if hot.inode != inode:
        return "this data directory is a copy, or was moved to another file system, and its original may use this cold directory"
    return ""


def read_hot_owner(disk: Disk, path: str, cold_id: bytes) -> HotOwner:
    """What the data directory says of that cold directory; no owner where its file is damaged, too. Raises DiskError."""
    directory, found = disk.file_id(path.rpartition("/")[0]), read_owner(disk, path)
    inode = 0 if directory is None else directory[1]
    return HotOwner(found if found is not None and found.cold_id == cold_id else None, inode)


def read_owner(disk: Disk, path: str) -> ColdOwner | None:
    """What a data directory says of the cold directory that it has; None if it says nothing, or its file is damaged. Raises DiskError."""
    try:
        return decode_owner(read_whole(disk, path, OWNER_TABLE.size))
    except DAMAGE:
        return None
    except DiskError as error:
        if error.errno != errno.ENOENT:
            raise
        return None


def write_owner(disk: Disk, path: str, owner: ColdOwner) -> None:
    """Replace the file; durable on return."""
    write_atomically(disk, path, owner.encode())
    disk.sync_directory(path.rpartition("/")[0])
