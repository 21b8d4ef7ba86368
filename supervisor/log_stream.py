"""Writing log lines without ever waiting for whoever reads them.

A node writes its log in the loops of the supervisor and of the workers. A pipe, a socket or a terminal takes nothing more once its
reader has stopped, and a write that waited there would stop the node. So a line that does not fit now is left out, and counted; as soon
as something fits again a line `quiver.log.lost` says how many were left out. Files are written as usual.
"""

from __future__ import annotations

import io
import logging
import os
import socket
import stat
from collections.abc import Callable
from typing import NamedTuple, TextIO

LOST_EVENT = "quiver.log.lost"
_REST_BYTES_MAX = 1 << 20
"""The most bytes that are kept of the rest of a line that was written in part."""


class Outlet(NamedTuple):
    """A way to write that never waits."""

    write: Callable[[bytes], int]
    """Writes what fits now and returns how many bytes did. Raises BlockingIOError if none did."""
    close: Callable[[], None]


def log_handler(stream: TextIO) -> logging.Handler:
    """A handler for that stream: one that never waits, where the stream has a reader that could stop reading."""
    outlet = _outlet_to(stream)
    return logging.StreamHandler(stream) if outlet is None else PromptHandler(outlet)


class PromptHandler(logging.Handler):
    """Writes a line if there is room for it now; otherwise leaves the line out and counts it."""

    def __init__(self, outlet: Outlet) -> None:
        super().__init__()
        self._outlet = outlet
        self._rest = b""
        """The rest of a line that was written in part."""
        self._lost = 0
        self._pid = os.getpid()

    def emit(self, record: logging.LogRecord) -> None:
        """Write a record without ever waiting; what does not fit is dropped, counted, and reported when there is room."""
        if self._pid != os.getpid():
            # Forked: what is still to be written is the parent's.
            self._rest, self._lost, self._pid = b"", 0, os.getpid()
        try:
            if self._lost and self._put(self.format(_lost_record(self._lost))):
                self._lost = 0
            if self._lost or not self._put(self.format(record)):
                self._lost += 1
        except OSError:
            # The reader is gone for good. The node goes on without a log.
            self._lost += 1
        except Exception:  # noqa: BLE001 - as every handler of `logging` does: a line that cannot be spelled ends nothing
            self.handleError(record)

    def close(self) -> None:
        """Close the outlet; a record that is not written by then is lost."""
        self._outlet.close()
        super().close()

    def _put(self, line: str) -> bool:
        """Whether the line was written, or the rest of it is kept."""
        data = self._rest + line.encode(errors="backslashreplace") + b"\n"
        try:
            written = self._outlet.write(data)
        except BlockingIOError:
            return False
        if written < len(self._rest):
            self._rest = self._rest[written:]
            return False
        self._rest = data[written:][:_REST_BYTES_MAX]
        return True


def _lost_record(lost: int) -> logging.LogRecord:
    reason = "whoever reads the log did not read"
    fields: dict[str, object] = {"pid": os.getpid(), "lines": lost, "reason": reason}
    message = f'{LOST_EVENT} pid={os.getpid()} lines={lost} reason="{reason}"'
    attributes = {"levelno": logging.WARNING, "levelname": "WARNING", "msg": message, "event": LOST_EVENT}
    return logging.makeLogRecord({**attributes, "name": "quiver", "fields": fields})


def _outlet_to(stream: TextIO) -> Outlet | None:
    """A way to write to the stream without waiting; None where no reader is waited for, or where there is no such way."""
    try:
        descriptor = stream.fileno()
        mode = os.fstat(descriptor).st_mode
        if stat.S_ISSOCK(mode):
            return _to_socket(descriptor)
        if stat.S_ISFIFO(mode) or os.isatty(descriptor):
            return _to_pipe(descriptor)
    except (OSError, io.UnsupportedOperation):
        pass
    return None


def _to_socket(descriptor: int) -> Outlet:
    connection = socket.socket(fileno=os.dup(descriptor))
    return Outlet(lambda data: connection.send(data, socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL), connection.close)


def _to_pipe(descriptor: int) -> Outlet:
    """Open the pipe a second time, without waiting writes: that flag belongs to the open file, which other programs share."""
    own = os.open(f"/proc/self/fd/{descriptor}", os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    return Outlet(lambda data: os.write(own, data), lambda: os.close(own))
