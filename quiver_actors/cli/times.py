"""Times on the command line, as a type of argparse: with their zone, such as 2026-01-31T12:00Z."""

from __future__ import annotations

import argparse
import datetime

_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)


def moment(text: str) -> datetime.datetime:
    """Read a time. Raises argparse.ArgumentTypeError: the text is no time, or says no zone."""
    try:
        found = datetime.datetime.fromisoformat(text)
    except ValueError:
        found = None
    if found is None or found.tzinfo is None:
        raise argparse.ArgumentTypeError(f"{text!r} is no time with its zone, such as 2026-01-31T12:00Z")
    return found


def unix_ns(time: datetime.datetime) -> int:
    """The time in UNIX nanoseconds, without floating point."""
    return (time - _EPOCH) // datetime.timedelta(microseconds=1) * 1000
