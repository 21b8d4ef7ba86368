"""Sizes and durations as people write them, and back.

Inside the program sizes are integer bytes and durations integer nanoseconds; only this module knows the spellings.
"""

from __future__ import annotations

import re

from quiver_actors.errors import ConfigError

KIB = 1 << 10
MIB = 1 << 20
GIB = 1 << 30

MICROSECOND_NS = 1_000
MILLISECOND_NS = 1_000_000
SECOND_NS = 1_000_000_000

NUMBER_MAX = 1 << 62
"""The largest number of a setting: 4 EiB, 146 years. The sum of two still fits the 64 bits that files, messages and shared memory have."""

_SIZE_UNITS = {
    "": 1,
    "b": 1,
    "kb": 10**3,
    "mb": 10**6,
    "gb": 10**9,
    "tb": 10**12,
    "kib": KIB,
    "mib": MIB,
    "gib": GIB,
    "tib": 1 << 40,
}
_DURATION_UNITS_NS = {
    "ns": 1,
    "us": MICROSECOND_NS,
    "ms": MILLISECOND_NS,
    "s": SECOND_NS,
    "m": 60 * SECOND_NS,
    "min": 60 * SECOND_NS,
    "h": 3600 * SECOND_NS,
    "d": 86400 * SECOND_NS,
}
_NUMBER_AND_UNIT = re.compile(r"^\s*(\d+(?:\.\d+)?)\s*([a-zA-Z]*)\s*$")


def parse_size(text: str | int) -> int:
    """Read a size such as `"32MiB"`, `"1.5 GB"` or `4096`.

    Returns:
        Bytes, not negative.

    Raises:
        ConfigError: the text is no number with a known unit, or it is above `NUMBER_MAX`.
    """
    if isinstance(text, int) and not isinstance(text, bool):
        if text >= 0:
            return _possible("size", text, text)
        raise ConfigError(f"size {text} is negative: expected a number of bytes such as 33554432 or '32MiB'")
    found = _NUMBER_AND_UNIT.match(str(text))
    unit = _SIZE_UNITS.get(found.group(2).lower()) if found else None
    if found is None or unit is None:
        raise ConfigError(f"size {text!r} is not understood: expected bytes or a size such as '32MiB' or '1.5GB'")
    return _possible("size", text, float(found.group(1)) * unit)


def parse_duration_ns(text: str | int, *, bare_unit_ns: int = 0) -> int:
    """Read a duration such as `"25ms"`, `"1.5s"` or `"0ms"`.

    Args:
        bare_unit_ns: what a number without a unit counts. 0: such a number must be 0, as in the configuration, where a reader of
            `flush_interval = 25` could not tell milliseconds from seconds.

    Returns:
        Nanoseconds, not negative.

    Raises:
        ConfigError: no unit where one is needed, an unknown one, or it is above `NUMBER_MAX`.
    """
    if text == 0 or text == "0":
        return 0
    found = _NUMBER_AND_UNIT.match(text) if isinstance(text, str) else None
    units = _DURATION_UNITS_NS | {"": bare_unit_ns} if bare_unit_ns else _DURATION_UNITS_NS
    unit = units.get(found.group(2).lower()) if found else None
    if found is None or unit is None:
        seconds = ", or a number of seconds" if bare_unit_ns else ""
        raise ConfigError(
            f"duration {text!r} is not understood: expected a number with a unit such as '25ms' or '5s'{seconds}"
        )
    return _possible("duration", text, float(found.group(1)) * unit)


def _possible(what: str, text: str | int, value: float) -> int:
    if value > NUMBER_MAX:
        raise ConfigError(f"{what} {str(text)[:40]!r} is too large: expected at most 4 EiB, or 146 years")
    return round(value)


def format_size(size_bytes: int) -> str:
    """Spell a size for people: three significant digits, binary units."""
    if size_bytes < KIB:
        return f"{size_bytes} B"
    scaled = float(size_bytes)
    for unit in ("KiB", "MiB", "GiB", "TiB", "PiB"):
        scaled /= 1024
        if scaled < 1023.5 or unit == "PiB":
            break
    digits = 2 if scaled < 9.995 else 1 if scaled < 99.95 else 0
    return f"{scaled:.{digits}f} {unit}"


def format_duration(duration_ns: int) -> str:
    """Spell a duration for people: `250us`, `12ms`, `4.2s`, `3m10s`, `2h05m`, `4d03h`."""
    if duration_ns < MILLISECOND_NS:
        return f"{duration_ns / MICROSECOND_NS:.0f}us"
    if duration_ns < SECOND_NS:
        return f"{duration_ns / MILLISECOND_NS:.0f}ms"
    seconds = duration_ns / SECOND_NS
    if seconds < 60:
        return f"{seconds:.1f}s"
    minutes, rest = divmod(int(seconds), 60)
    if minutes < 60:
        return f"{minutes}m{rest:02d}s"
    hours, minutes = divmod(minutes, 60)
    if hours < 24:
        return f"{hours}h{minutes:02d}m"
    days, hours = divmod(hours, 24)
    return f"{days}d{hours:02d}h"
