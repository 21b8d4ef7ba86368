"""The layout contract of a topic: what a log and its reader must agree on.

Source: docs/formats.md section 6.1, "Layout contract of a topic".
"""

from __future__ import annotations

import msgspec
import xxhash

from quiver_actors.base.config import TopicSettings
from quiver_actors.store.wal import layout


def segment_cfg_hash(settings: TopicSettings) -> bytes:
    """A hash of the contract, 16 bytes."""
    if not settings.slots:
        return layout.DEFAULT_CFG_HASH
    contract = {"checksum": "crc32", "slots": sorted((slot_id, name) for name, slot_id in settings.slots.items())}
    return xxhash.xxh3_128_digest(msgspec.msgpack.encode(contract, order="deterministic"))
