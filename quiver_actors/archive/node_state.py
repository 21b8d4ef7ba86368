"""What a restore needs of a node beside its archived segments: the state of a node, and its form as bytes. Pure.

The state holds small files of the data directory byte for byte (each has its own checksum), and what the archiver knew of bundles that
were not archived. It is one frame as in `store.staged.records`, magic QUIVNST\\0, whose content is a compressed msgpack map with the
fields below. A later version may add fields, each with a default that means "not recorded".
"""

from __future__ import annotations

import zlib

import msgspec

from quiver_actors.errors import InvalidFormat
from quiver_actors.store.staged.records import decode_frame, encode_frame

STATE_MAGIC = b"QUIVNST\0"


class KnownSegment(msgspec.Struct, frozen=True, array_like=True):
    """A segment that was not archived yet, as its worker told of it."""

    segment_seq: int
    bundle_count: int
    is_sealed: bool
    """Whether no bundle can have come to it since."""


class PreparedStage(msgspec.Struct, frozen=True, array_like=True):
    """A prepared stage of a transaction, whose bundles are in no archived segment yet."""

    number: int
    txn_id: str
    epoch: int
    bundle_count: int
    record: bytes = b""
    """The content of its `.prepared` file; empty: not recorded."""
    is_archived: bool = False
    """Whether the files of the stage are in the archive (`archive.staged_bundles`)."""


class EngineState(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One topic on one core."""

    topic: str
    core: int
    directory: str
    """Its path in the data directory."""
    incarnation: str
    files: dict[str, bytes]
    """Small files by their path in the directory."""
    on_disk: tuple[tuple[int, int], ...] = ()
    """The numbers of the sealed segments on the disk, as runs (first, last)."""
    unarchived: tuple[KnownSegment, ...] = ()
    """Segments, sealed or not, that were not archived, by rising number."""
    next_segment_seq: int = -1
    """No segment had this number or a higher one; -1: not known."""
    prepared: tuple[PreparedStage, ...] = ()
    began_at: int = -1
    """The first segment number of the restored directory that this state was made for; -1: an archiver has taken it."""
    open_ends: tuple[int, ...] = ()
    """What `began_at` was in earlier restores of which no archiver has taken a state: bundles may have been stored and lost there."""


class NodeState(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The state of one node at one time."""

    node: str
    taken_unix_ns: int
    files: dict[str, bytes]
    """Small files by their path in the data directory: topics, number of cores, decisions."""
    engines: tuple[EngineState, ...] = ()
    """Only those of archived topics."""
    restored_into: str = ""
    """The identity of the data directory that a restore has made this state for; empty: an archiver has taken it."""


def encode_state(state: NodeState) -> bytes:
    """The content of the object."""
    return encode_frame(STATE_MAGIC, zlib.compress(msgspec.msgpack.encode(state)))


def decode_state(content: bytes) -> NodeState:
    """Read the object. Raises Truncated, InvalidFormat, UnsupportedVersion or ChecksumMismatch."""
    try:
        state = _decoded(content)
    except (msgspec.DecodeError, UnicodeDecodeError, zlib.error) as error:
        raise InvalidFormat(f"the state of a node in its archive cannot be read: {error}") from error
    paths = [
        *state.files,
        *(each.directory for each in state.engines),
        *(name for each in state.engines for name in each.files),
    ]
    outside = [path for path in paths if not all(part.strip(".") for part in path.split("/"))]
    if outside:
        raise InvalidFormat(
            f"the state of a node in its archive names {outside[0]!r}, which is no path in a data directory"
        )
    return state


def _decoded(content: bytes) -> NodeState:
    packed = msgspec.msgpack.decode(decode_frame(STATE_MAGIC, content, "the state of a node"), type=bytes)
    return msgspec.msgpack.decode(zlib.decompress(packed), type=NodeState)
