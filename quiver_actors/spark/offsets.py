"""The offsets of a stream: for each worker of each node the position behind what was read. Pure.

Spark stores offsets as JSON text in the query's checkpoint and compares them as text, so keys are sorted and values are plain integers:

    {"cores": {"node-a/0": 131075, "node-a/1": 65536}, "logs": {"node-a/0": 70512}, "stores": {"node-a/0": "3f...", "node-a/1": "a1..."},
     "v": 1}

A position is `segment_seq * 65536 + bundle_index` of the next bundle. Behind a whole segment it is the start of the next number, so that
one place has one spelling. Positions of a core only rise. They are of one directory, whose incarnation `stores` says where it is known:
in another one, made when the topic was created anew or its node was given an empty disk, the same numbers name other bundles. `logs` has
the log position there, where it is known: see `continuity`. A list `archive` names the workers of which the query was still reading what
had left the disk.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, NamedTuple

from quiver_actors.errors import ConfigError

VERSION = 1
ARCHIVE_KEY = "archive"
_SEGMENT_POSITIONS = 1 << 16


class Place(NamedTuple):
    """One worker of one node."""

    node: str
    core: int

    def __str__(self) -> str:
        return f"{self.node}/{self.core}"


Offsets = Mapping[Place, int]
"""Position of each worker; one that is not named stands at 0."""
Stores = Mapping[Place, str]
"""The incarnation of the directory that a worker's position is of, where it is known."""


def position(segment_seq: int, bundle_index: int, bundle_count: int | None = None) -> int:
    """The position of a bundle, or, at the end of a segment of `bundle_count` bundles, that behind it."""
    if bundle_index == bundle_count:
        segment_seq, bundle_index = segment_seq + 1, 0
    return segment_seq * _SEGMENT_POSITIONS + bundle_index


def bundle_of(position: int) -> tuple[int, int]:
    """(segment number, bundle index) of the bundle at a position."""
    return divmod(position, _SEGMENT_POSITIONS)


def last_bundle_before(position: int) -> tuple[int, int] | None:
    """The bundle id that an acknowledgement up to a position names; None at the start.

    Behind a whole segment it is the largest index that a bundle can have: an acknowledgement up to it covers what there is.
    """
    segment_seq, index = bundle_of(position)
    if index:
        return segment_seq, index - 1
    return (segment_seq - 1, _SEGMENT_POSITIONS - 2) if segment_seq else None


def to_json(offsets: Offsets, stores: Stores | None = None, logs: Mapping[Place, int] | None = None) -> dict[str, Any]:
    """Return the offsets as JSON for Spark, with sorted keys. A worker at position 0 fits every store."""
    found: dict[str, Any] = {"cores": {str(place): offsets[place] for place in sorted(offsets)}}
    named = {str(place): store for place, store in sorted((stores or {}).items()) if offsets.get(place)}
    known = {str(place): log_position for place, log_position in sorted((logs or {}).items())}
    return {**found, **({"logs": known} if known else {}), **({"stores": named} if named else {}), "v": VERSION}


def from_json(value: Mapping[str, Any]) -> dict[Place, int]:
    """Read what `to_json` gave.

    Raises:
        ConfigError: it is something else.
    """
    cores = value.get("cores")
    if value.get("v") != VERSION or not isinstance(cores, Mapping):
        raise ConfigError(
            f"{json.dumps(value)} are not offsets of version {VERSION}: expected "
            '{"v":1,"cores":{"<node>/<core>":<position>}}; another Quiver wrote this checkpoint, or another source'
        )
    return {_place(name): _position(name, found) for name, found in cores.items()}


def stores_of(value: Mapping[str, Any]) -> dict[Place, str]:
    """Which stores the positions are of; those of earlier versions do not say.

    Raises:
        ConfigError: it is something else.
    """
    stores = value.get("stores", {})
    if not isinstance(stores, Mapping) or not all(isinstance(store, str) for store in stores.values()):
        raise ConfigError(f'{json.dumps(value)} are not offsets: expected "stores" to name a directory for each worker')
    return {_place(name): store for name, store in stores.items()}


def logs_of(value: Mapping[str, Any]) -> dict[Place, int]:
    """The log positions at the positions, where they are known; offsets of earlier versions do not say.

    Raises:
        ConfigError: it is something else.
    """
    logs = value.get("logs", {})
    if not isinstance(logs, Mapping):
        raise ConfigError(
            f'{json.dumps(value)} are not offsets: expected "logs" to give a log position for each worker'
        )
    return {_place(name): _position(name, found) for name, found in logs.items()}


def in_archive(value: Mapping[str, Any]) -> set[Place]:
    """Which positions were in front of what the disk had, so that bundles were still to be read from the archive.

    Raises:
        ConfigError: it is something else.
    """
    places = value.get(ARCHIVE_KEY, [])
    if not isinstance(places, list) or not all(isinstance(place, str) for place in places):
        raise ConfigError(f'{json.dumps(value)} are not offsets: expected "{ARCHIVE_KEY}" to be a list of workers')
    return {_place(name) for name in places}


def parse_offsets(text: str) -> dict[Place, int]:
    """Read offsets that a user wrote.

    Raises:
        ConfigError: no JSON, or no offsets.
    """
    try:
        value = json.loads(text)
    except json.JSONDecodeError as error:
        raise ConfigError(f"{text!r} is not 'earliest', 'latest' or JSON: {error}") from error
    if not isinstance(value, dict):
        raise ConfigError(f'{text!r} is not {{"v":1,"cores":{{"<node>/<core>":<position>}}}}')
    return from_json(value)


def _place(name: Any) -> Place:
    node, slash, core = str(name).rpartition("/")
    if not slash or not node or not core.isdecimal():
        raise ConfigError(f"{name!r} names no worker: expected '<node>/<core>'")
    return Place(node, int(core))


def _position(name: str, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise ConfigError(f"offset of {name!r} is {value!r}: expected a position, an integer of at least 0")
    return value
