"""Durations on the command line, as types of argparse: `10` is ten seconds, and `10s`, `1.5m`, `250ms` say their unit."""

from __future__ import annotations

import argparse

from quiver_actors.base.units import SECOND_NS, parse_duration_ns
from quiver_actors.errors import ConfigError


def duration_ns(text: str) -> int:
    """Read a duration in nanoseconds; 0 is one. Raises argparse.ArgumentTypeError: the text is no duration."""
    try:
        return parse_duration_ns(text, bare_unit_ns=SECOND_NS)
    except ConfigError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def duration_seconds(text: str) -> float:
    """Read a duration in seconds; 0 is one. Raises argparse.ArgumentTypeError: the text is no duration."""
    return duration_ns(text) / SECOND_NS


def positive_duration_seconds(text: str) -> float:
    """Read a duration above 0 in seconds. Raises argparse.ArgumentTypeError: the text is no such duration."""
    seconds = duration_seconds(text)
    if not seconds:
        raise argparse.ArgumentTypeError(f"{text} is not above 0: expected a duration such as 2 (seconds) or 500ms")
    return seconds
