"""The names of objects in an archive. Pure.

    <node>/<topic>/<incarnation>/core_<n>/<20 digits>.<generation>.qseg        a segment, byte for byte as it lay on the disk
    <node>/<topic>/<incarnation>/core_<n>/<20 digits>.<generation>.qseg.crc    the checksums of its blocks
    <node>/<topic>/<incarnation>/core_<n>/<20 digits>-<20 digits>.<8 hex>.qpack a pack: several small segments and their checksums
    <node>/manifest.head                                                       which parts of the manifest hold now
    <node>/manifest.parts/<20 digits>-<8 hex>.json                             a part of the manifest, which never changes
    <node>/manifest.states/<20 digits>-<8 hex>.state                           what a restore needs beside the segments; it never changes
    <node>/manifest.garbage/<20 digits>-<8 hex>.list                           names of objects that are to be deleted
    <node>/manifest.stages/<topic>/<incarnation>/core_<n>/<16 digits>.<4 digits>.<8 hex>.stage    a part of a prepared stage

No topic has a dot in its name, so none clashes with the manifest. Numbers have 20 digits: keys sort as the segments do.
"""

from __future__ import annotations

import re
from typing import NamedTuple

CRC_SUFFIX = ".crc"
HEAD_NAME = "manifest.head"
PARTS_NAME = "manifest.parts"
STATES_NAME = "manifest.states"
STAGES_NAME = "manifest.stages"
GARBAGE_NAME = "manifest.garbage"
GENERATION_MAX = 1000
"""More uploads of different contents of one segment are taken for a fault."""

_SEGMENT = re.compile(r"^(.+)/([^/]+)/([^/]+)/core_(\d+)/(\d{20})\.(\d+)\.qseg$")

_COMMIT = re.compile(r"/(?:manifest\.parts|manifest\.states)/(\d{20})-[0-9a-f]{8}\.\w+$")
_STREAM = re.compile(r"([^/]+)/([^/]+)/core_(\d+)/[^/]+")
_PACK = re.compile(r"/core_\d+/(\d{20})-(\d{20})\.[0-9a-f]{8}\.qpack$")


class StreamKey(NamedTuple):
    """The segments of one topic on one core, numbered without a repetition: the unit of order in an archive."""

    topic: str
    incarnation: str
    """The incarnation of the directory that the segments lay in: equal numbers in another one are other segments."""
    core: int


class SegmentKey(NamedTuple):
    """The parts of the name of a segment's object."""

    node: str
    stream: StreamKey
    segment_seq: int
    generation: int


def stream_prefix(node: str, stream: StreamKey) -> str:
    """The prefix of all segments of a stream, without a `/` at its end."""
    return f"{node}/{stream.topic}/{stream.incarnation}/core_{stream.core}"


def segment_key(node: str, stream: StreamKey, segment_seq: int, generation: int) -> str:
    """The key of a segment's object."""
    return f"{stream_prefix(node, stream)}/{segment_seq:020d}.{generation}.qseg"


def crc_key(of_segment: str) -> str:
    """The key of the checksums that belong to a segment's object."""
    return of_segment + CRC_SUFFIX


def pack_key(node: str, stream: StreamKey, first_segment_seq: int, last_segment_seq: int, crc: int) -> str:
    """The key of a pack of segments.

    Args:
        crc: CRC-32 of its content, so that a key belongs to one content.
    """
    return f"{stream_prefix(node, stream)}/{first_segment_seq:020d}-{last_segment_seq:020d}.{crc:08x}.qpack"


def parse_pack_key(key: str) -> tuple[int, int] | None:
    """The first and the last segment number of the pack of a key that `pack_key` has made; None for any other key."""
    found = _PACK.search(key)
    return None if found is None else (int(found[1]), int(found[2]))


def crc_of_pack(key: str) -> int:
    """The CRC-32 of its content that the key of a pack has."""
    return int(key.rsplit(".", 2)[-2], 16)


def parse_segment_key(key: str) -> SegmentKey | None:
    """The parts of a key that `segment_key` has made; None for any other key."""
    found = _SEGMENT.match(key)
    if found is None:
        return None
    node, topic, incarnation, core, segment_seq, generation = found.groups()
    return SegmentKey(node, StreamKey(topic, incarnation, int(core)), int(segment_seq), int(generation))


def stream_of_key(node: str, key: str) -> StreamKey | None:
    """The stream of a segment, its checksums or a pack; None for any other object."""
    found = _STREAM.fullmatch(key.removeprefix(f"{node}/"))
    if found is None or found[1].startswith("manifest."):
        return None
    return StreamKey(found[1], found[2], int(found[3]))


def commit_of_key(key: str) -> int:
    """The commit for which a part of the manifest or a state was written; -1 for any other key."""
    found = _COMMIT.search(key)
    return -1 if found is None else int(found[1])


def head_key(node: str) -> str:
    """The key of a node's head object."""
    return f"{node}/{HEAD_NAME}"


def part_key(node: str, commit: int, random_hex: str) -> str:
    """The key of a part of the manifest that belongs to a commit."""
    return f"{node}/{PARTS_NAME}/{commit:020d}-{random_hex}.json"


def state_key(node: str, commit: int, random_hex: str) -> str:
    """The key of the state of a node that belongs to a commit."""
    return f"{node}/{STATES_NAME}/{commit:020d}-{random_hex}.state"


def garbage_key(node: str, commit: int, crc: int) -> str:
    """The key of a list of objects that are to be deleted; `crc` is the CRC-32 of its content."""
    return f"{node}/{GARBAGE_NAME}/{commit:020d}-{crc:08x}.list"


def is_garbage_list(key: str) -> bool:
    """Whether `garbage_key` has made a key."""
    return f"/{GARBAGE_NAME}/" in key


def crc_of_garbage_list(key: str) -> int:
    """The CRC-32 of its content that the key of such a list has."""
    return int(key.removesuffix(".list")[-8:], 16)


def is_segment_or_sums(key: str) -> bool:
    """Whether a key is that of a segment or of its checksums."""
    return parse_segment_key(key.removesuffix(CRC_SUFFIX)) is not None


def staged_key(node: str, stream: StreamKey, number: int, part: int, crc: int) -> str:
    """The key of one part of a prepared stage.

    Args:
        crc: CRC-32 of its entries, so that a key belongs to one content.
    """
    topic, incarnation, core = stream
    return f"{node}/{STAGES_NAME}/{topic}/{incarnation}/core_{core}/{number:016d}.{part:04d}.{crc:08x}.stage"
