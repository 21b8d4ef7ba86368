"""Bytes of the structures of cold segments, as `test_field_tables` compares them with the page."""

from __future__ import annotations

from typing import Any

from quiver_actors.store.files.cold_directory import IDENTITY
from quiver_actors.store.files.cold_list import ColdEntry, ColdList, encode_cold_list
from quiver_actors.store.files.cold_owner import ColdOwner

ID = bytes(range(1, 17))
COLD = encode_cold_list(ColdList(ID, "/cold", {90: ColdEntry(91, b"end", ((92, 93),))}, (94, 95)))
COLD_SAMPLES: dict[str, tuple[bytes, int, dict[str, Any]]] = {
    "list of cold segments": (
        COLD,
        0,
        {
            "magic": b"QUIVER\0H",
            "version": 1,
            "header_size": 44,
            "cold_id": ID,
            "segment_count": 1,
            "unwanted_count": 2,
            "root_bytes": 5,
            "zeroes": bytes(6),
        },
    ),
    "cold segment": (COLD, 44, {"segment_seq": 90, "size_bytes": 91, "lost_count": 1, "end_bytes": 3}),
    "lost bundles of a cold segment": (COLD, 68, {"first": 92, "count": 93}),
    "cold file to delete": (COLD, 79, {"segment_seq": 94}),
    "identity of a cold directory": (
        IDENTITY.pack(cold_id=ID),
        0,
        {"magic": b"QUIVCOLD", "version": 1, "size": 32, "cold_id": ID},
    ),
    "owner of a cold directory": (
        ColdOwner(ID, ID[::-1], 96, former=2 * ID[:8]).encode(),
        0,
        {
            "magic": b"QUIVCOWN",
            "version": 1,
            "size": 72,
            "cold_id": ID,
            "token": ID[::-1],
            "former": 2 * ID[:8],
            "inode": 96,
        },
    ),
}
