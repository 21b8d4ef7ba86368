"""The options of `format("quiver")`: one table, case-insensitive as everywhere in Spark, unknown ones refused."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from quiver_actors.errors import ConfigError, UsageError
from quiver_actors.model import DEFAULT_TOPIC, check_id
from quiver_actors.units import MIB, SECOND_NS, parse_duration_ns, parse_size

READ, WRITE = "read", "write"


@dataclass(frozen=True)
class SourceOptions:
    """The options of one read or write, checked. Travels pickled from the driver to its tasks."""

    topic: str = DEFAULT_TOPIC
    run_dir: str | None = None
    """None: each process asks its own environment (`QUIVER_RUN_DIR`, else the default of its node)."""
    slots: tuple[str | int, ...] = ()
    push_timeout_ns: int = 60 * SECOND_NS
    max_partition_bytes: int = 64 * MIB


def _topic(text: str) -> str:
    return check_id("topic", text)


def _slots(text: str) -> tuple[str | int, ...]:
    names = [name.strip() for name in text.split(",")]
    if not all(names) or len(set(names)) != len(names):
        raise ConfigError(f"{text!r} is not a list of distinct slot names or ids, such as 'flights,weather'")
    return tuple(int(name) if name.isdecimal() else name for name in names)


def _partition_bytes(text: str) -> int:
    size_bytes = parse_size(text)
    if size_bytes == 0:
        raise ConfigError("0 bytes is too small")
    return size_bytes


@dataclass(frozen=True)
class Option:
    """One row of the table: its spelling in the documentation, the field that it sets, how to read it, and what it is good for."""

    name: str
    field: str
    parse: Callable[[str], Any]
    used_by: tuple[str, ...]
    meaning: str


OPTIONS: tuple[Option, ...] = (
    Option("topic", "topic", _topic, (READ, WRITE), "topic to read or write; `default` if not given"),
    Option("path", "topic", _topic, (READ, WRITE), "same as `topic`: what `load(...)` and `save(...)` are called with"),
    Option(
        "runDir",
        "run_dir",
        str,
        (READ, WRITE),
        "run directory of the node; else `$QUIVER_RUN_DIR`, else the user's default",
    ),
    Option(
        "slots",
        "slots",
        _slots,
        (READ, WRITE),
        "slot names or ids, separated by commas. One: its columns are the row's. Several: a struct column for each",
    ),
    Option(
        "pushTimeout",
        "push_timeout_ns",
        parse_duration_ns,
        (READ, WRITE),
        "how long a task waits for its node, and for an acknowledgement, such as `60s`",
    ),
    Option(
        "maxPartitionBytes",
        "max_partition_bytes",
        _partition_bytes,
        (READ,),
        "stored bytes of one partition, such as `64MiB`",
    ),
)


def parse_options(given: Mapping[str, str], operation: str) -> SourceOptions:
    """Turn the options of a read or a write (`READ`, `WRITE`) into values.

    Raises:
        ConfigError: unknown for this operation (lists the known ones), not understood, or `topic` and `path` that differ.
    """
    table = {option.name.lower(): option for option in OPTIONS if operation in option.used_by}
    values: dict[str, Any] = {}
    for key, text in given.items():
        option = table.get(key.lower())
        if option is None:
            raise ConfigError(_unknown(key, operation, [option.name for option in table.values()]))
        try:
            value = option.parse(text)
        except UsageError as error:
            raise ConfigError(f"option {option.name!r}: {error}") from error
        if values.setdefault(option.field, value) != value:
            raise ConfigError(
                f"options 'topic' and 'path' name different topics: {values[option.field]!r} and {value!r}"
            )
    return SourceOptions(**values)


def _unknown(key: str, operation: str, known: list[str]) -> str:
    spelled = {name.lower(): name for name in known}
    near = difflib.get_close_matches(key.lower(), list(spelled), n=1)
    hint = f"did you mean {spelled[near[0]]!r}? " if near else ""
    return f"option {key!r} is unknown to a {operation} of format quiver; {hint}Known options: {', '.join(known)}"
