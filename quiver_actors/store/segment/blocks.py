"""The blocks of an Arrow file's footer as arrays: where the messages of a stream are. Pure."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from quiver_actors.store.segment.arrow_file import BLOCK, FILE_START

Spans = npt.NDArray[np.int64]
"""Messages of a file, n x 3: file offset, metadata bytes and body bytes of each."""

BLOCKS = np.dtype([("offset", "<i8"), ("metadata_bytes", "<i4"), ("padding", "<i4"), ("body_bytes", "<i8")])
"""Packed `BLOCK`s as numpy sees them."""

assert BLOCKS.itemsize == BLOCK.size


def unpack_blocks(blocks: bytes) -> Spans:
    """Packed `BLOCK`s as spans, offsets as they are."""
    table = np.frombuffer(blocks, BLOCKS)
    return np.stack([table["offset"], table["metadata_bytes"], table["body_bytes"]], axis=1).astype(np.int64)


def are_inside(spans: Spans, stream_bytes: int) -> npt.NDArray[np.bool_]:
    """Which spans, by their offset from the start of their stream, are aligned and lie inside it."""
    offsets, metadata_bytes, body_bytes = spans[:, 0], spans[:, 1], spans[:, 2]
    small = (offsets <= stream_bytes) & (metadata_bytes <= stream_bytes) & (body_bytes <= stream_bytes)
    inside = (offsets >= len(FILE_START)) & (metadata_bytes >= 8) & (body_bytes >= 0)
    aligned = (offsets | metadata_bytes | body_bytes) & 7 == 0
    return np.asarray(small & inside & aligned & (offsets + metadata_bytes + body_bytes <= stream_bytes), np.bool_)
