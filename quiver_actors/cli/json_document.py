"""What `--json` prints: one object on one line, `schema_version` first. Fields are only ever added to it."""

from __future__ import annotations

from typing import Any

SCHEMA_VERSION = 1


def print_json(document: dict[str, Any]) -> None:
    import msgspec

    print(msgspec.json.encode({"schema_version": SCHEMA_VERSION, **document}).decode(), flush=True)
