"""The catalogue: every topic of a node with the settings that hold for it. One file in the data directory.

    quiver.topics            line 1: `quiver-topics 1 ` and the CRC-32 of all behind that line, 8 hex digits; then one JSON object
    quiver.topics.previous   the catalogue before that

Owner: the supervisor, who alone writes it: the new file is durable under a temporary name before it takes the place of the old one, so
that a crash leaves the one or the other. Workers and commands read it, and say which version they have read.

A damaged catalogue is never guessed at: the previous one is used where it is whole, and opening fails where that is damaged too.
"""

from __future__ import annotations

import errno

import msgspec

from quiver_actors.checksum import crc32
from quiver_actors.config import TopicSettings
from quiver_actors.config.tree import NODE_USER
from quiver_actors.disk.protocol import Disk, read_whole, write_atomically
from quiver_actors.errors import ChecksumMismatch, DiskError, FormatError, InvalidFormat, UnsupportedVersion
from quiver_actors.units import MIB

CATALOGUE_NAME = "quiver.topics"
PREVIOUS_NAME = "quiver.topics.previous"
CATALOGUE_VERSION = 1
_MAGIC = b"quiver-topics"
_SIZE_BYTES_MAX = 64 * MIB


class Topic(msgspec.Struct, frozen=True, kw_only=True):
    """A topic that is there."""

    settings: TopicSettings
    """What holds, with everything from defaults, file, environment and commands worked out."""
    incarnation: str = ""
    """Another one each time a topic of this name is created: cursors of an earlier one do not fit."""
    created_unix_ns: int = 0
    source: str = "config"
    """Who asked for it: `config`, `command`, or `disk` (its directory was found, as that of a dead letter topic)."""
    given: dict[str, str] = {}
    """What commands have set: key to TOML."""


class Deletion(msgspec.Struct, frozen=True, kw_only=True):
    """A topic that was given up and whose directory is still in its place: until it is gone the name is taken."""

    topic: str
    incarnation: str
    asked_unix_ns: int
    owner_uid: int = NODE_USER


class Catalogue(msgspec.Struct, frozen=True, kw_only=True):
    """All topics at one time. `version` rises with every change."""

    version: int = 0
    topics: dict[str, Topic] = {}
    deletions: list[Deletion] = []
    arena_bytes: int = 0
    """For new connections; 0 = not said."""


def encode_catalogue(catalogue: Catalogue) -> bytes:
    body = msgspec.json.format(msgspec.json.encode(catalogue), indent=1)
    return b"%s %d %08x\n" % (_MAGIC, CATALOGUE_VERSION, crc32(body)) + body


def decode_catalogue(content: bytes) -> Catalogue:
    """Raises InvalidFormat, UnsupportedVersion or ChecksumMismatch."""
    head, _, body = content.partition(b"\n")
    parts = head.split(b" ")
    if len(parts) != 3 or parts[0] != _MAGIC or not parts[1].isdigit():
        raise InvalidFormat(
            f"{CATALOGUE_NAME} begins with {head[:40]!r}, expected '{_MAGIC.decode()} {CATALOGUE_VERSION} CRC'"
        )
    if int(parts[1]) != CATALOGUE_VERSION:
        raise UnsupportedVersion(f"{CATALOGUE_NAME}: version {int(parts[1])}, this program reads {CATALOGUE_VERSION}")
    if b"%08x" % crc32(body) != parts[2]:
        raise ChecksumMismatch(f"{CATALOGUE_NAME}: CRC does not match")
    try:
        return msgspec.json.decode(body, type=Catalogue)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InvalidFormat(f"{CATALOGUE_NAME}: {error}") from error


def read_catalogue(disk: Disk) -> Catalogue | None:
    """The catalogue of a data directory; None where there never was one.

    Raises:
        FormatError: it and the one before are damaged, or written by a newer program.
        DiskError: it cannot be read.
    """
    damage: FormatError | None = None
    for name in (CATALOGUE_NAME, PREVIOUS_NAME):
        try:
            return decode_catalogue(read_whole(disk, name, _SIZE_BYTES_MAX))
        except UnsupportedVersion:
            raise
        except FormatError as error:
            damage = damage or error
        except DiskError as error:
            if error.errno != errno.ENOENT:
                raise
    if damage is not None:
        raise InvalidFormat(
            f"the list of topics cannot be read: {damage}, and {PREVIOUS_NAME} is no help. Move both files away: the topics of the "
            "configuration and those found on disk are then taken over with the settings of the configuration"
        )
    return None


def write_catalogue(disk: Disk, catalogue: Catalogue) -> None:
    """Make a catalogue durable in place of the one before. Raises DiskError: the one before still holds."""
    if disk.exists(CATALOGUE_NAME):
        write_atomically(disk, PREVIOUS_NAME, read_whole(disk, CATALOGUE_NAME, _SIZE_BYTES_MAX))
    write_atomically(disk, CATALOGUE_NAME, encode_catalogue(catalogue))
    disk.sync_directory(".")
