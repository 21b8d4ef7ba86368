"""The kinds of values that a setting can have: how each is read from TOML or from text, and written as TOML. Pure."""

from __future__ import annotations

import json
import pwd
import tomllib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgspec

from quiver_actors.base.config.tree import TOKEN_ROLES, TokenSettings
from quiver_actors.base.model import SlotTable, check_id
from quiver_actors.base.units import GIB, KIB, MIB, NUMBER_MAX, parse_duration_ns, parse_size
from quiver_actors.errors import ConfigError, QuiverError

USERS_MAX = 256
IDS_MAX = 256
_SIZES = ((1 << 40, "TiB"), (GIB, "GiB"), (MIB, "MiB"), (KIB, "KiB"))
_DURATIONS = (
    (86_400_000_000_000, "d"),
    (3_600_000_000_000, "h"),
    (60_000_000_000, "min"),
    (1_000_000_000, "s"),
    (1_000_000, "ms"),
    (1_000, "us"),
    (1, "ns"),
)


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of value.

    `read` takes what TOML gives, `from_text` turns the text of a flag or an environment variable into that; both raise ValueError or
    ConfigError for what is no such value. `write` makes the TOML literal that reads back as the same value.
    """

    name: str
    expected: str
    read: Callable[[Any], Any]
    write: Callable[[Any], str]
    from_text: Callable[[str], Any] = str


def size_text(size_bytes: int) -> str:
    """A size as a setting is spelled, exactly: "32MiB", "100B"."""
    return next(
        (f"{size_bytes // unit}{name}" for unit, name in _SIZES if size_bytes and size_bytes % unit == 0),
        f"{size_bytes}B",
    )


def duration_text(duration_ns: int) -> str:
    """A duration as a setting is spelled, exactly: "25ms", "0ms"."""
    if not duration_ns:
        return "0ms"
    return next(f"{duration_ns // unit}{name}" for unit, name in _DURATIONS if duration_ns % unit == 0)


def _integer(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise ValueError
    if abs(value) > NUMBER_MAX:
        raise ConfigError(f"it is too large: expected at most {NUMBER_MAX}")
    return value


def _text(value: Any) -> str:
    if not isinstance(value, str) or "\0" in value:
        raise ValueError
    value.encode()  # a path of other bytes could not be told to clients; a UnicodeError is a ValueError
    return value


def _boolean(value: Any) -> bool:
    if not isinstance(value, bool):
        raise ValueError
    return value


def _boolean_from_text(text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise ValueError
    return text.lower() == "true"


def _part(value: Any) -> float:
    if isinstance(value, str) and value.endswith("%"):
        value = float(value.removesuffix("%")) / 100
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= 1:
        raise ValueError
    return float(value)


def _part_from_text(text: str) -> float | str:
    return text if text.endswith("%") else float(text)


def _uid(value: Any) -> int:
    if isinstance(value, str) and not value.isdigit():
        try:
            return pwd.getpwnam(value).pw_uid
        except KeyError:
            raise ConfigError(f"user {value!r} does not exist on this machine") from None
    if isinstance(value, bool) or not isinstance(value, int | str) or not 0 <= int(value) < 1 << 32:
        raise ValueError
    return int(value)


def _owner(value: Any) -> int:
    return -1 if value == "" else _uid(value)


def _uids(value: Any) -> tuple[int, ...]:
    if not isinstance(value, list):
        raise ValueError
    if len(value) > USERS_MAX:
        raise ConfigError(f"{len(value)} users are more than the {USERS_MAX} that one topic may name")
    return tuple(sorted({_uid(each) for each in value}))


def _slots(value: Any) -> dict[str, int]:
    if not isinstance(value, dict):
        raise ValueError
    try:
        return dict(SlotTable({str(name): _integer(slot_id) for name, slot_id in value.items()}).declared)
    except QuiverError as error:
        raise ConfigError(str(error)) from error


def _slots_from_text(text: str) -> dict[str, int]:
    pairs = (part.partition("=") for part in text.split(",") if part.strip())
    return {name.strip(): int(slot_id) for name, _, slot_id in pairs}


def _ids(value: Any) -> tuple[str, ...]:
    if not isinstance(value, list):
        raise ValueError
    if len(value) > IDS_MAX:
        raise ConfigError(f"{len(value)} names are more than the {IDS_MAX} that one topic may have there")
    try:
        return tuple(sorted({check_id("subscriber", each) for each in value}))
    except QuiverError as error:
        raise ConfigError(str(error)) from error


def _columns(value: Any) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(each, str) and each for each in value):
        raise ValueError
    if len(value) > IDS_MAX:
        raise ConfigError(f"{len(value)} names are more than the {IDS_MAX} that one topic may have there")
    return tuple(sorted(set(value)))


def _listed(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


def _inline_table(slots: dict[str, int]) -> str:
    return "{" + ", ".join(f"{json.dumps(name)} = {slot_id}" for name, slot_id in slots.items()) + "}"


def _tokens(value: Any) -> dict[str, TokenSettings]:
    if not isinstance(value, dict):
        raise ValueError
    return {name: _token(name, each) for name, each in value.items()}


def _token(name: str, value: Any) -> TokenSettings:
    """Read one table of `[serve.tokens]`. Raises ConfigError, which says which part is wrong."""
    try:
        check_id("topic", name)
        found = msgspec.convert(value, TokenSettings, strict=True)
        for topic in found.topics:
            check_id("topic", topic)
    except (msgspec.ValidationError, QuiverError) as error:
        raise ConfigError(f"token {name!r}: {error}; expected {_TOKENS_EXPECTED}") from error
    if isinstance(value, dict) and (unknown := set(value) - set(TokenSettings.__struct_fields__)):
        raise ConfigError(f"token {name!r}: {', '.join(sorted(unknown))} is unknown; expected {_TOKENS_EXPECTED}")
    if found.role not in TOKEN_ROLES:
        raise ConfigError(f"token {name!r}: role {found.role!r} is not one of {', '.join(TOKEN_ROLES)}")
    if not found.file.startswith("/"):
        raise ConfigError(f"token {name!r}: file {found.file!r} is not an absolute path")
    return found


def _tokens_from_text(text: str) -> Any:
    return tomllib.loads(f"tokens = {text}")["tokens"]


def _tokens_text(tokens: dict[str, TokenSettings]) -> str:
    rows = (
        f"{name} = {{file = {json.dumps(token.file)}, role = {json.dumps(token.role)}, topics = {json.dumps(list(token.topics))}}}"
        for name, token in tokens.items()
    )
    return "{" + ", ".join(rows) + "}"


_TOKENS_EXPECTED = (
    'a table such as {file = "/etc/quiver/spark.token", role = "write", topics = ["clicks"]} for each name'
)

SIZE = Kind(
    "size", 'a size such as "32MiB" or "1.5GB", or a number of bytes', parse_size, lambda v: f'"{size_text(v)}"'
)
DURATION = Kind(
    "duration",
    'a number with a unit such as "25ms", "5s" or "3d"',
    parse_duration_ns,
    lambda v: f'"{duration_text(v)}"',
)
INTEGER = Kind("integer", "a whole number", _integer, str, int)
TEXT = Kind("text", "text in quotes", _text, json.dumps)
BOOLEAN = Kind("boolean", "true or false", _boolean, lambda v: str(v).lower(), _boolean_from_text)
OWNER = Kind("user", 'a user name or number, "" for the node\'s user', _owner, lambda v: '""' if v < 0 else str(v))
USERS = Kind(
    "users", 'a list of user names or numbers, such as ["spark", 1001]', _uids, lambda v: json.dumps(list(v)), _listed
)
SUBSCRIBERS = Kind(
    "subscribers", 'a list of subscribers, such as ["billing"]', _ids, lambda v: json.dumps(list(v)), _listed
)
COLUMNS = Kind("columns", 'a list of columns, such as ["delay"]', _columns, lambda v: json.dumps(list(v)), _listed)
PART = Kind(
    "part",
    'a part of the whole such as "25%" or 0.25, above 0 and up to "100%"',
    _part,
    lambda v: f'"{round(100 * v, 6):g}%"',
    _part_from_text,
)
SLOTS = Kind(
    "slots",
    "a table of slot name = id (0 to 62), such as {flights = 0, weather = 1}",
    _slots,
    _inline_table,
    _slots_from_text,
)
TOKENS = Kind("tokens", _TOKENS_EXPECTED, _tokens, _tokens_text, _tokens_from_text)
