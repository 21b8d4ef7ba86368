"""Topics of a node as plain values: what one is, what its deletion is, and all of them at one time."""

from __future__ import annotations

import msgspec

from quiver_actors.base.config import TopicSettings
from quiver_actors.base.config.tree import NODE_USER


class Topic(msgspec.Struct, frozen=True, kw_only=True):
    """A topic that is there."""

    settings: TopicSettings
    """Settings in force, computed from defaults, file, environment and commands."""
    incarnation: str = ""
    """Id that differs each time a topic of this name is created: cursors of an earlier one do not fit."""
    created_unix_ns: int = 0
    source: str = "config"
    """Origin of the topic: `config`, `command`, or `disk` (its directory was found, for example of a dead letter topic)."""
    given: dict[str, str] = {}
    """Values that commands have set, as TOML by key."""


class Deletion(msgspec.Struct, frozen=True, kw_only=True):
    """A deleted topic whose directory still exists: its name is taken until the directory is gone."""

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
    """Arena size of new connections in bytes; 0: not said."""
