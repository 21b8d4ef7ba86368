"""Log lines as `key=value`, one event a line, each with a stable name (`quiver.worker.start`). To stderr: data goes to stdout."""

from __future__ import annotations

import logging
import re
from typing import TextIO

PREFIX = "quiver."
_logger = logging.getLogger("quiver")
_PLAIN = re.compile(r"^[\w@%+./:,-]+$")


def log_event(event: str, fields: dict[str, object], level: int = logging.INFO) -> None:
    """Log one event; fields that are None are left out."""
    if _logger.isEnabledFor(level):
        _logger.log(level, "%s", format_event(event, fields))


def format_event(event: str, fields: dict[str, object]) -> str:
    """`quiver.worker.start worker=core_0 pid=4711`: values with spaces or quotes are quoted, newlines escaped."""
    pairs = [f"{key}={_spell(value)}" for key, value in fields.items() if value is not None]
    return " ".join([f"{PREFIX}{event}", *pairs])


def _spell(value: object) -> str:
    text = str(value)
    if _PLAIN.match(text):
        return text
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'


def configure_logging(stream: TextIO, level: int = logging.INFO) -> None:
    """Send the log of this process, and of what it forks, to `stream`."""
    handler = logging.StreamHandler(stream)
    handler.setFormatter(logging.Formatter("ts=%(asctime)s.%(msecs)03d level=%(levelname)s event=%(message)s", "%FT%T"))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level)
