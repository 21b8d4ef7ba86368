"""The output of `--json`: one object on one line, `schema_version` first. Fields are only ever added to it."""

from __future__ import annotations

import json
from typing import Any

SCHEMA_VERSION = 1


def print_json(document: dict[str, Any]) -> None:
    """Print a document as one JSON object with `schema_version` first."""
    print(as_json({"schema_version": SCHEMA_VERSION, **document}), flush=True)


def as_json(document: Any) -> str:
    """Names of files that are not UTF-8 have their odd bytes as `\\udc80` to `\\udcff`, which Python makes the same bytes again of."""
    import msgspec

    try:
        return msgspec.json.encode(document).decode()
    except UnicodeEncodeError:
        return json.dumps(msgspec.to_builtins(document), separators=(",", ":"))
