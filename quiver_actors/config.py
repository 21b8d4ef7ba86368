"""Settings of a node and of its topics: what may be set, the defaults, and reading them from TOML.

One frozen tree. Sizes and durations are text in the file ("32MiB", "25ms") and integers with units here.
"""

from __future__ import annotations

import difflib
import os
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from quiver_actors.errors import ConfigError, QuiverError
from quiver_actors.model import DEFAULT_TOPIC, ENTRY_BODY_BYTES_MAX, SEGMENT_BUNDLES_MAX, SlotTable, check_id
from quiver_actors.units import MIB, MILLISECOND_NS, SECOND_NS, parse_duration_ns, parse_size

DURABILITY_MODES = ("wal", "segment_only")
COMPACTION_MODES = ("auto", "off")


class SegmentSettings(msgspec.Struct, frozen=True, kw_only=True):
    """When an open segment is sealed."""

    target_size_bytes: int = 32 * MIB
    max_open_duration_ns: int = 5 * SECOND_NS
    max_stream_count: int = 512
    max_bundle_count: int = SEGMENT_BUNDLES_MAX
    compaction: str = "auto"
    """`auto`: sealed segments are rewritten in the background where it pays; `off`: only by `quiver compact`."""


class WalSettings(msgspec.Struct, frozen=True, kw_only=True):
    flush_interval_ns: int = 0
    """0 = acknowledge after the covering fdatasync; above 0 = after the write, synced by a timer of that interval."""
    max_rotated_files: int = 10
    """Rotated files whose seal lags; at the limit pushes wait."""


class RetentionSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What is kept free, and how long what is kept."""

    min_free_bytes: int = 64 * MIB
    """Low-water mark of the file system: no new log file is begun below it, so that everything else still has room."""


class TopicSettings(msgspec.Struct, frozen=True, kw_only=True):
    name: str = DEFAULT_TOPIC
    durability: str = "wal"
    slots: dict[str, int] = {}
    segment: SegmentSettings = SegmentSettings()
    wal: WalSettings = WalSettings()
    retention: RetentionSettings = RetentionSettings()
    progress_flush_interval_ns: int = 50 * MILLISECOND_NS
    orphan_ttl_ns: int = 0
    """A subscriber that no connection is attached to for so long is dropped; 0 = never."""

    def slot_table(self) -> SlotTable:
        return SlotTable(self.slots)


class NodeSettings(msgspec.Struct, frozen=True, kw_only=True):
    data_dir: str = "./quiver_data"
    run_dir: str = ""
    """Where sockets and the counters page are found; empty: `default_run_dir()`."""
    cores: int = 0
    """Number of workers; 0 = one per core of the affinity mask."""
    arena_bytes: int = 64 * MIB
    """Shared-memory ring per producer connection."""
    topics: dict[str, TopicSettings] = {}

    def resolved_run_dir(self) -> str:
        return self.run_dir or default_run_dir()

    def all_topics(self) -> dict[str, TopicSettings]:
        """The configured topics, `default` first and always there."""
        found = {DEFAULT_TOPIC: self.topics.get(DEFAULT_TOPIC, TopicSettings())}
        found.update(self.topics)
        return found


def default_run_dir(environment: Mapping[str, str] | None = None) -> str:
    """`$QUIVER_RUN_DIR`, else `$XDG_RUNTIME_DIR/quiver`, else a directory of this user under the temporary directory."""
    env = os.environ if environment is None else environment
    if env.get("QUIVER_RUN_DIR"):
        return env["QUIVER_RUN_DIR"]
    if env.get("XDG_RUNTIME_DIR"):
        return os.path.join(env["XDG_RUNTIME_DIR"], "quiver")
    return os.path.join(env.get("TMPDIR", "/tmp"), f"quiver-{os.getuid()}")


_SIZE, _DURATION = "size", "duration"
_NODE_KEYS: dict[str, tuple[str, str]] = {
    "data_dir": ("data_dir", "str"),
    "run_dir": ("run_dir", "str"),
    "cores": ("cores", "int"),
    "arena_size": ("arena_bytes", _SIZE),
}
_SEGMENT_KEYS: dict[str, tuple[str, str]] = {
    "target_size": ("target_size_bytes", _SIZE),
    "max_open_duration": ("max_open_duration_ns", _DURATION),
    "max_stream_count": ("max_stream_count", "int"),
    "max_bundle_count": ("max_bundle_count", "int"),
    "compaction": ("compaction", "str"),
}
_WAL_KEYS: dict[str, tuple[str, str]] = {
    "flush_interval": ("flush_interval_ns", _DURATION),
    "max_rotated_files": ("max_rotated_files", "int"),
}
_RETENTION_KEYS: dict[str, tuple[str, str]] = {
    "min_free": ("min_free_bytes", _SIZE),
}
_TOPIC_KEYS: dict[str, tuple[str, str]] = {
    "durability": ("durability", "str"),
    "progress_flush_interval": ("progress_flush_interval_ns", _DURATION),
    "orphan_ttl": ("orphan_ttl_ns", _DURATION),
}


def load_config(path: str | None, overrides: Mapping[str, Any] | None = None) -> NodeSettings:
    """Read the TOML file at `path` (None: defaults), then apply `overrides` (names of `NodeSettings` fields; None = not given).

    Raises:
        ConfigError: unreadable file, no TOML, unknown key, wrong type, or values that contradict each other.
    """
    document: dict[str, Any] = {}
    if path is not None:
        try:
            document = tomllib.loads(Path(path).read_text(encoding="utf-8"))
        except OSError as error:
            raise ConfigError(
                f"config file {path!r} cannot be read: {error.strerror}; name a readable file with --config"
            ) from error
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise ConfigError(f"config file {path!r} is not TOML: {error}") from error
    settings = parse_config(document)
    given = {name: value for name, value in (overrides or {}).items() if value is not None}
    settings = msgspec.structs.replace(settings, **given)
    check_settings(settings)
    return settings


def parse_config(document: Mapping[str, Any]) -> NodeSettings:
    """Turn a parsed TOML document into settings; errors name the key."""
    sections = {"segment", "wal", "retention", "topics", *_TOPIC_KEYS}
    _refuse_unknown("", document, {*_NODE_KEYS, *sections})
    values = _read_keys("", document, _NODE_KEYS)
    base = _parse_topic("", {key: document[key] for key in sections - {"topics"} if key in document}, TopicSettings())
    topics_table = document.get("topics", {})
    if not isinstance(topics_table, dict):
        raise ConfigError("key 'topics': expected tables such as [topics.clicks]")
    topics = {DEFAULT_TOPIC: base}
    for name, table in topics_table.items():
        if not isinstance(table, dict):
            raise ConfigError(f"key 'topics.{name}': expected a table such as [topics.{name}]")
        try:
            check_id("topic", name)
        except QuiverError as error:
            raise ConfigError(f"key 'topics.{name}': {error}") from error
        topics[name] = _parse_topic(f"topics.{name}.", table, msgspec.structs.replace(base, name=name))
    settings = NodeSettings(topics=topics, **values)
    check_settings(settings)
    return settings


def check_settings(settings: NodeSettings) -> None:
    """Refuse values outside their range and combinations that cannot work."""
    if settings.cores < 0:
        raise ConfigError(
            f"key 'cores': {settings.cores} is negative; expected 0 (one per core) or a number of workers"
        )
    if settings.arena_bytes < MIB:
        raise ConfigError(f"key 'arena_size': {settings.arena_bytes} bytes is too small; expected at least 1MiB")
    for topic in settings.all_topics().values():
        _check_topic(topic)


def _check_topic(topic: TopicSettings) -> None:
    where = f"topic {topic.name!r}"
    if topic.durability not in DURABILITY_MODES:
        raise ConfigError(
            f"{where}: durability {topic.durability!r} is unknown; expected one of {', '.join(DURABILITY_MODES)}"
        )
    if not 1 <= topic.segment.max_bundle_count <= SEGMENT_BUNDLES_MAX:
        raise ConfigError(f"{where}: segment.max_bundle_count must be 1..{SEGMENT_BUNDLES_MAX}")
    if not 64 << 10 <= topic.segment.target_size_bytes <= 1 << 30:
        raise ConfigError(
            f"{where}: segment.target_size must be 64KiB..1GiB (one entry may hold {ENTRY_BODY_BYTES_MAX >> 20} MiB)"
        )
    if topic.segment.max_stream_count < 1:
        raise ConfigError(f"{where}: segment.max_stream_count must be at least 1")
    if topic.segment.compaction not in COMPACTION_MODES:
        raise ConfigError(
            f"{where}: segment.compaction {topic.segment.compaction!r} is unknown; "
            f"expected one of {', '.join(COMPACTION_MODES)}"
        )
    if topic.segment.max_open_duration_ns < MILLISECOND_NS:
        raise ConfigError(f"{where}: segment.max_open_duration must be at least 1ms")
    if topic.wal.max_rotated_files < 1:
        raise ConfigError(f"{where}: wal.max_rotated_files must be at least 1")
    try:
        topic.slot_table()
    except QuiverError as error:
        raise ConfigError(f"{where}: slots: {error}") from error


def _parse_topic(prefix: str, table: Mapping[str, Any], base: TopicSettings) -> TopicSettings:
    _refuse_unknown(prefix, table, {*_TOPIC_KEYS, "segment", "wal", "retention", "slots"})
    values = _read_keys(prefix, table, _TOPIC_KEYS)
    for section, keys in (("segment", _SEGMENT_KEYS), ("wal", _WAL_KEYS), ("retention", _RETENTION_KEYS)):
        inner = table.get(section, {})
        if not isinstance(inner, dict):
            raise ConfigError(f"key '{prefix}{section}': expected a table")
        _refuse_unknown(f"{prefix}{section}.", inner, set(keys))
        values[section] = msgspec.structs.replace(
            getattr(base, section), **_read_keys(f"{prefix}{section}.", inner, keys)
        )
    if "slots" in table:
        values["slots"] = _read_slots(prefix, table["slots"])
    return msgspec.structs.replace(base, **values)


def _read_slots(prefix: str, slots: Any) -> dict[str, int]:
    if not isinstance(slots, dict) or not all(isinstance(v, int) and not isinstance(v, bool) for v in slots.values()):
        raise ConfigError(
            f"key '{prefix}slots': expected a table of slot name = id, such as {{flights = 0, weather = 1}}"
        )
    return dict(slots)


def _read_keys(prefix: str, table: Mapping[str, Any], keys: Mapping[str, tuple[str, str]]) -> dict[str, Any]:
    found = {}
    for key, (field, kind) in keys.items():
        if key in table:
            found[field] = _read_value(f"{prefix}{key}", table[key], kind)
    return found


def _read_value(key: str, value: Any, kind: str) -> Any:
    try:
        if kind == _SIZE:
            return parse_size(value)
        if kind == _DURATION:
            return parse_duration_ns(value)
    except ConfigError as error:
        raise ConfigError(f"key '{key}': {error}") from error
    expected = int if kind == "int" else str
    if not isinstance(value, expected) or isinstance(value, bool):
        raise ConfigError(f"key '{key}': {value!r} is not what was expected ({kind})")
    return value


def _refuse_unknown(prefix: str, table: Mapping[str, Any], known: set[str]) -> None:
    for key in table:
        if key not in known:
            near = difflib.get_close_matches(key, sorted(known), n=1)
            hint = f"; did you mean '{prefix}{near[0]}'?" if near else f"; known keys: {', '.join(sorted(known))}"
            raise ConfigError(f"key '{prefix}{key}' is unknown{hint}")
