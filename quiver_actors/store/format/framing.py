"""The framing of small files: magic, version and size in front, a checksum behind. One place decides whether a file is whole, damaged, or
of a newer version. Pure.

A file is whole if its checksum holds, and damaged if not. Only a whole file can be of a newer version: damage does not hit version and
checksum alike. One kind of file is an exception (`Framing.is_kept_in_doubt`).
"""

from __future__ import annotations

import enum
import struct
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

from quiver_actors.base.checksum import crc32
from quiver_actors.errors import ArrowError, ChecksumMismatch, InvalidFormat, Truncated, UnsupportedVersion
from quiver_actors.store.format.fields import FieldTable

if TYPE_CHECKING:
    from typing_extensions import Buffer

CRC = struct.Struct("<I")
DAMAGE = (Truncated, InvalidFormat, ChecksumMismatch, ArrowError)
"""Errors that a decoder raises for a damaged file. `UnsupportedVersion` is none of them: a file of a newer version stays as it is."""
Checksum = Callable[["Buffer"], int]


class Place(enum.Enum):
    """Where the checksum of a file stands."""

    FILE = "at the end of the file"
    SIZE = "at the end of as many bytes as `size` says"
    BODY = "behind the body"


class Framing(NamedTuple):
    """How files of one kind are framed.

    The table begins with `magic`, `version` and a size of two bytes, that of the table. For `Place.SIZE` it ends with the checksum, for
    `Place.BODY` it has a field `body_bytes`.
    """

    name: str
    """The kind of file, for messages."""
    table: FieldTable
    place: Place
    checksums: tuple[Checksum, ...] = (crc32,)
    """The checksum that this program writes, then others that a whole file may have."""
    size_least: int = 0
    """The smallest size field of a whole file; 0: the size of the table."""
    reads_newer: bool = False
    """Whether newer versions keep the fields of the table, so that they can be read."""
    is_kept_in_doubt: bool = False
    """Whether another version may have another framing: a file of another version whose checksum does not hold counts as newer, unless
    the checksum proves that the version alone is damaged."""

    @property
    def version(self) -> int:
        """The version that this program writes."""
        return int(self.table.constants["version"])

    def seal(self, body: bytes) -> bytes:
        """Return the file: what the checksum covers, and the checksum."""
        return body + CRC.pack(self.checksums[0](body))

    def pack(self, **values: Any) -> bytes:
        """Return a file that is nothing but its table (`Place.SIZE`)."""
        return self.seal(self.table.pack(**values, crc32=0)[: -CRC.size])

    def open(self, data: bytes) -> memoryview:
        """Return what the checksum of a whole file covers, header included.

        Raises:
            Truncated, InvalidFormat, ChecksumMismatch: the file is damaged.
            UnsupportedVersion: the file is of a newer version.
        """
        size_least = self.size_least or self.table.size
        bytes_least = size_least + CRC.size * (self.place is not Place.SIZE)
        if len(data) < bytes_least:
            raise Truncated(f"{self.name} of {len(data)} bytes: expected at least {bytes_least}")
        magic = self.table.magic
        if not self.table.has_magic(data):
            raise InvalidFormat(f"{self.name} starts with {data[: len(magic)]!r}: expected {magic!r}")
        version, size, end = self._measure(data)
        if self.checksum_of(data) is None:
            self._refuse_damaged(data, version, end)
        if version > self.version and not self.reads_newer:
            raise self._newer(version)
        if not version or size < size_least or (self._is_fixed(version) and size != size_least):
            raise InvalidFormat(f"{self.name} of version {version}, {size} bytes: expected {size_least} bytes")
        if size > end and self.place is Place.FILE:
            raise Truncated(f"{self.name} of {len(data)} bytes: its header says that it has {size} bytes")
        return memoryview(data)[:end]

    def checksum_of(self, data: bytes) -> Checksum | None:
        """Return the checksum that the file ends in and that holds; None if none does."""
        end = self._measure(data)[2]
        if not 0 <= end <= len(data) - CRC.size:
            return None
        body, stored = memoryview(data)[:end], CRC.unpack_from(data, end)[0]
        return next((checksum for checksum in self.checksums if checksum(body) == stored), None)

    def is_newer(self, data: bytes) -> bool:
        """Whether the file is whole and of a newer version."""
        has_head = len(data) >= self.table.size and self.table.has_magic(data)
        return has_head and self._measure(data)[0] > self.version and self.checksum_of(data) is not None

    def _measure(self, data: bytes) -> tuple[int, int, int]:
        """Return version, size field, and where the checksum should stand."""
        at = self.table.offsets["version"]
        version, size = struct.unpack_from("<HH", data, at)
        if self.place is Place.FILE:
            return version, size, len(data) - CRC.size
        if self.place is Place.SIZE:
            return version, size, size - CRC.size
        return version, size, size + self.table.unpack(data)["body_bytes"]

    def _is_fixed(self, version: int) -> bool:
        return self.place is Place.SIZE and version == self.version

    def _refuse_damaged(self, data: bytes, version: int, end: int) -> NoReturn:
        if self.is_kept_in_doubt and version != self.version:
            restored = self.table.restored(data, "version")[: -CRC.size]
            if self.checksums[0](restored) != CRC.unpack_from(data, len(restored))[0]:
                raise self._newer(version)
            raise ChecksumMismatch(f"{self.name}: version {version} is a damaged {self.version}, its checksum says so")
        if end > len(data) - CRC.size:
            raise Truncated(f"{self.name} of {len(data)} bytes: expected a checksum at {end}")
        raise ChecksumMismatch(f"{self.name}: the checksum does not match the contents")

    def _newer(self, version: int) -> UnsupportedVersion:
        return UnsupportedVersion(f"{self.name} of version {version}: this program reads version {self.version}")
