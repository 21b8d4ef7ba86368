"""A connection to the Flight server of another host: made when it is first needed, and anew when it was lost. Errors that the server
names come out as what they were there; what happens to the connection itself comes out as `WorkerUnavailable`.

Owned by the process that made it: gRPC does not survive a fork, so a forked child is refused.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator
from typing import Any, TypeVar

import msgspec
import pyarrow as pa
import pyarrow.flight as fl

from quiver_actors.base.error_codes import error_classes
from quiver_actors.base.locks import new_lock
from quiver_actors.errors import (
    ClosedError,
    ConfigError,
    NotAllowed,
    ProtocolError,
    QuiverError,
    UsageError,
    WorkerUnavailable,
)
from quiver_actors.flight.contract import ERROR_PREFIX

T = TypeVar("T")

_DETAIL = re.compile(r"\. (?:Detail: |gRPC client debug)")
"""Where the words of a server's error end, and those of gRPC begin."""

FLIGHT_ERRORS = (fl.FlightError, pa.ArrowException, OSError)
BACKOFF_SECONDS_MIN = 0.05
BACKOFF_SECONDS_MAX = 1.0
_OPTIONS = [
    # Each connection tries by itself: otherwise one that waits for its next attempt holds up all others to the same address.
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1000),
]

_ALIGNED = pa.ipc.IpcReadOptions(ensure_alignment=pa.ipc.Alignment.At64Byte)
"""Values arrive where gRPC put them, and Arrow's kernels want them aligned."""


class FlightConnection:
    """One connection. Methods may be called by several threads."""

    def __init__(
        self, name: str, location: str, *, token: str | None, tls_roots: str | None, advice: str = "option 'tlsRoots'"
    ) -> None:
        """
        Args:
            name: of the node, for messages.
            location: `grpc://host:port` or `grpc+tls://host:port`.
            tls_roots: PEM file of the certificates to trust; None: those of the system.
            advice: how the caller names that file.
        """
        self.name = name
        self.location = location
        self._token = token
        self._tls_roots = tls_roots
        self._advice = advice
        self._client: fl.FlightClient | None = None
        self._is_closed = False
        self._pid = os.getpid()
        self._lock = new_lock()

    def ask(self, request: Any, answer: type[T], timeout_seconds: float, *, is_retried: bool = False) -> T:
        """Send a request as the action of its name, and return the answer.

        Args:
            is_retried: try again until the time is over where the server cannot be reached; for requests that may come twice.

        Raises:
            QuiverError: what the server says.
            WorkerUnavailable: it cannot be reached, or does not answer in time.
            NotAllowed: it does not take the token.
            ProtocolError: it answered with something else.
        """
        action = fl.Action(type(request).__name__, msgspec.json.encode(request))
        deadline = time.monotonic() + timeout_seconds
        for backoff_seconds in backoffs():
            try:
                left = max(deadline - time.monotonic(), 0.001)
                (result,) = self.client().do_action(action, self.options(left))
                return msgspec.json.decode(result.body.to_pybytes(), type=answer)
            except FLIGHT_ERRORS as error:
                found = self.explained(error)
                if not is_retried or not is_away(error) or time.monotonic() + backoff_seconds >= deadline:
                    raise found from error
            except (msgspec.DecodeError, ValueError) as error:
                raise ProtocolError(f"{self._where} answered with something else: {error}") from error
            time.sleep(backoff_seconds)
        raise AssertionError("the row of waiting times has no end")

    @property
    def _where(self) -> str:
        return self.location if self.name == self.location else f"node {self.name} at {self.location}"

    def client(self) -> fl.FlightClient:
        """The client of pyarrow, connected.

        Raises:
            ClosedError: it was closed for good.
            UsageError: the process was forked since, or the location is none.
            ConfigError: the certificates cannot be read.
        """
        if os.getpid() != self._pid:
            raise UsageError(f"the connection to {self.location} is of process {self._pid}: connect again after a fork")
        with self._lock:
            if self._is_closed:
                raise ClosedError("it was closed: connect again")
            if self._client is None:
                roots = None if self._tls_roots is None else _read_roots(self._tls_roots, self._advice)
                try:
                    self._client = fl.connect(self.location, tls_root_certs=roots, generic_options=_OPTIONS)
                except (fl.FlightError, pa.ArrowException) as error:
                    raise UsageError(
                        f"{self.location!r} is no place of a Flight server: expected grpc://HOST:PORT or grpc+tls://HOST:PORT"
                    ) from error
            return self._client

    def options(self, timeout_seconds: float | None) -> fl.FlightCallOptions:
        """Options of a call: the token, and after how many seconds it ends; None: never."""
        headers = [] if self._token is None else [(b"authorization", f"Bearer {self._token}".encode())]
        return fl.FlightCallOptions(timeout=timeout_seconds, headers=headers, read_options=_ALIGNED)

    def drop(self) -> None:
        """Close the connection; the next request opens another one."""
        with self._lock:
            client, self._client = self._client, None
        if client is not None:
            client.close()

    def close(self) -> None:
        """Close the connection for good. Idempotent."""
        with self._lock:
            self._is_closed = True
        if os.getpid() == self._pid:
            self.drop()

    def explained(self, error: Exception) -> QuiverError:
        """Return the Quiver error that the server named, else the Quiver error that a Flight error means for this node."""
        text = str(error)
        start = text.find(ERROR_PREFIX)
        if start >= 0:
            code, _, message = text[start + len(ERROR_PREFIX) :].partition(":")
            kind = error_classes().get(code)
            if kind is not None:
                found = kind.__new__(kind, f"{self._where}: {_DETAIL.split(message)[0]}")
                found.retry_after_ns = _retry_after_ns(error)
                return found
        where = self._where
        if isinstance(error, fl.FlightUnauthenticatedError):
            return NotAllowed(
                f"{where} does not take this token: give option 'token' or QUIVER_TOKEN as `quiver serve` has it"
            )
        if is_away(error):
            self.drop()
            return WorkerUnavailable(f"{where} cannot be reached ({text[:300]}): is its `quiver serve` running?")
        return ProtocolError(f"{where} answered with an error: {text[:1000]}")


def backoffs() -> Iterator[float]:
    """Waiting times between attempts, in seconds: each twice the last, up to a second, without an end."""
    seconds = BACKOFF_SECONDS_MIN
    while True:
        yield seconds
        seconds = min(2 * seconds, BACKOFF_SECONDS_MAX)


def is_away(error: BaseException) -> bool:
    """Whether a Flight error says that the server could not be reached, went away, or did not answer in time."""
    return isinstance(error, (fl.FlightUnavailableError, fl.FlightTimedOutError, fl.FlightCancelledError))


def _retry_after_ns(error: Exception) -> int:
    said = getattr(error, "extra_info", b"")
    return int(said) if isinstance(said, bytes) and said.isdigit() and len(said) < 20 else 0


def _read_roots(path: str, advice: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError as error:
        raise ConfigError(
            f"the certificates to trust ({path}) cannot be read: {error.strerror}; name a PEM file of this host with {advice}"
        ) from error
