"""Lengths of time as callers give them, in seconds, and as everything inside has them, in nanoseconds."""

from __future__ import annotations

from quiver_actors.base.units import SECOND_NS
from quiver_actors.errors import UsageError

_SECONDS_MAX = ((1 << 63) - 1) / SECOND_NS


def nanoseconds(name: str, seconds: float, expected: str = "0 or more") -> int:
    """A length of time that may be 0.

    Args:
        name: of the argument, for the message; `expected`: what else would have done.

    Raises:
        UsageError: it is no number of seconds, negative, or longer than anything lives. A text such as "10m" is a setting's.
    """
    is_number = isinstance(seconds, int | float) and not isinstance(seconds, bool)
    if not is_number or not 0 <= seconds < _SECONDS_MAX:
        raise UsageError(f"{name}={seconds!r} is not possible: expected a number of seconds, {expected}")
    return round(seconds * SECOND_NS)


def positive_nanoseconds(name: str, seconds: float | None, without: str) -> int:
    """A length of time above 0; None, which means `without`, is 0.

    Raises:
        UsageError: as `nanoseconds`.
    """
    if seconds is None:
        return 0
    expected = f"more than 0, or None for {without}"
    found = nanoseconds(name, seconds, expected)
    if not found:
        raise UsageError(f"{name}={seconds!r} is not possible: expected a number of seconds, {expected}")
    return found
