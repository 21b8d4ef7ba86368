"""`quiver.core`: the numbers and the incarnation of one engine's directory. Pure codec.

Source: docs/formats.md section 5, "Numbers".

The two reserved numbers are raised ahead of use, so that no segment number and no sequence is ever used twice, also after
every file that bore it is gone. After a clean shutdown they are exact.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass

from quiver_actors.store.format.fields import Field, FieldTable, one_of
from quiver_actors.store.format.framing import Framing, Place

CORE_NAME = "quiver.core"
CORE_TABLE = FieldTable(
    "core file",
    Field("magic", "8s", constant=b"QUIVER\0C"),
    Field("version", "H", constant=1),
    Field("size", "H", "bytes of the file", 53),
    Field("incarnation", "16s", "tells the directory from former ones"),
    Field("core_id", "I"),
    Field("next_segment_seq_reserved", "Q", "segment numbers from it on were never used"),
    Field("next_sequence_reserved", "Q", "sequences from it on were never used"),
    Field("clean_shutdown", "B", "1: the numbers are exact", check=one_of(0, 1)),
    Field("crc32", "I", "CRC-32 of all before"),
)
CORE = Framing(CORE_NAME, CORE_TABLE, Place.SIZE, is_kept_in_doubt=True)

SEGMENT_SEQ_BLOCK = 1024
SEQUENCE_BLOCK = 1 << 20


@dataclass(frozen=True, slots=True)
class CoreFile:
    """Content of the core file. Numbers below the reserved ones may have been used; the reserved ones and those above never were."""

    incarnation: bytes
    core_id: int
    next_segment_seq_reserved: int
    next_sequence_reserved: int
    clean_shutdown: bool


def encode_core(core: CoreFile) -> bytes:
    """Return the content of `quiver.core`, 53 bytes, with its CRC."""
    return CORE.pack(**asdict(core))


def decode_core(data: bytes) -> CoreFile:
    """Read the file. Raises as `Framing.open`."""
    CORE.open(data)
    incarnation, core_id, segment_seq, sequence, clean, _ = CORE_TABLE.struct.unpack_from(data)[3:]
    return CoreFile(incarnation, core_id, segment_seq, sequence, bool(clean))
