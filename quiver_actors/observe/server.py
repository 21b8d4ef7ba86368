"""The HTTP side: `/metrics` for Prometheus, `/` for people, `/status.json`, `/history.json`, `/live` and `/ready` for probes.

Owner of the listening socket and the sampler. Reads shared memory only, so it answers while workers hang and after the supervisor has
died. It changes nothing and has no secrets beyond the names of topics and subscribers; all the same it listens on loopback or on a Unix
socket unless it is told that others may look.
"""

from __future__ import annotations

import contextlib
import ipaddress
import logging
import os
import socket
import stat
from collections.abc import Callable
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.resources import files
from typing import NamedTuple

import msgspec
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST

from quiver_actors.cli.status_view import take_status
from quiver_actors.errors import ConfigError, QuiverError, UsageError
from quiver_actors.observe.collector import NodeCollector
from quiver_actors.observe.history import Sampler
from quiver_actors.shm.errors import ShmError
from quiver_actors.supervisor.log import log_event

DEFAULT_LISTEN = "127.0.0.1:9465"
_REQUEST_PATIENCE_SECONDS = 10
_UNIX = "unix:"
_POLICY = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:"


class Address(NamedTuple):
    """Where to listen: a host and a port, or a path."""

    host: str
    port: int
    path: str = ""

    def __str__(self) -> str:
        if self.path:
            return _UNIX + self.path
        return f"http://[{self.host}]:{self.port}" if ":" in self.host else f"http://{self.host}:{self.port}"


def parse_address(text: str, *, public: bool = False) -> Address:
    """Read `HOST:PORT`, `[V6]:PORT` or `unix:PATH`; port 0 takes a free one.

    Args:
        public: allow addresses that other machines reach.

    Raises:
        ConfigError: it is none of these, or not a loopback address without `public`.
    """
    if text.startswith(_UNIX):
        path = text.removeprefix(_UNIX)
        if not path:
            raise ConfigError(f"listen address {text!r} names no path: expected unix:PATH")
        return Address("", 0, os.path.abspath(path))
    host, _, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]") or "127.0.0.1"
    if not port.isdecimal() or int(port) > 65535:
        raise ConfigError(f"listen address {text!r} is not understood: expected HOST:PORT or unix:PATH")
    try:
        address = ipaddress.ip_address("127.0.0.1" if host == "localhost" else host)
    except ValueError as error:
        raise ConfigError(f"listen address {text!r}: {host!r} is not an IP address or localhost") from error
    if not (address.is_loopback or public):
        raise ConfigError(f"listen address {text!r} can be reached from other machines: say --public if that is meant")
    return Address(str(address), int(port))


class Page(NamedTuple):
    content_type: str
    body: bytes
    status: HTTPStatus = HTTPStatus.OK


class MetricsServer:
    """Serves until `close`. `address` is where it really listens."""

    def __init__(self, run_dir: str, address: Address) -> None:
        """Listen.

        Raises:
            UsageError: the address is taken or not allowed.
        """
        self._run_dir = run_dir
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(NodeCollector(run_dir))
        self._sampler = Sampler(lambda: take_status(run_dir))
        self._pages: dict[str, Callable[[], Page]] = {
            "/metrics": self._metrics,
            "/status.json": self._status,
            "/history.json": self._history,
            "/live": self._live,
            "/ready": self._ready,
            "/": lambda: _asset("index.html", "text/html; charset=utf-8"),
            "/page.css": lambda: _asset("page.css", "text/css; charset=utf-8"),
            "/page.js": lambda: _asset("page.js", "text/javascript; charset=utf-8"),
        }
        self._server = _listen(address)
        self._server.page_of = self.page
        self.address = address._replace(port=self._server.server_port)

    def serve(self) -> None:
        """Until another thread calls `close`, or an interrupt."""
        self._sampler.start()
        self._server.serve_forever(poll_interval=0.2)

    def close(self) -> None:
        """Stop and let the address go."""
        self._server.shutdown()
        self.release()

    def release(self) -> None:
        """The part of `close` for the thread that served."""
        self._server.server_close()
        self._sampler.close()
        if self.address.path:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self.address.path)

    def page(self, path: str) -> Page:
        """The answer to one GET."""
        make = self._pages.get(path)
        if make is None:
            known = ", ".join(sorted(self._pages))
            return Page(
                "text/plain; charset=utf-8", f"no {path} here; there is {known}\n".encode(), HTTPStatus.NOT_FOUND
            )
        return make()

    def _metrics(self) -> Page:
        try:
            return Page(CONTENT_TYPE_LATEST, generate_latest(self._registry))
        except (QuiverError, ShmError) as error:
            # No figures at all rather than those of a node that is down: it may be well.
            return Page("text/plain; charset=utf-8", f"{error}\n".encode(), HTTPStatus.SERVICE_UNAVAILABLE)

    def _status(self) -> Page:
        try:
            return Page("application/json", msgspec.json.encode(take_status(self._run_dir)))
        except (QuiverError, ShmError) as error:
            body = msgspec.json.encode({"error": str(error)})
            return Page("application/json", body, HTTPStatus.SERVICE_UNAVAILABLE)

    def _history(self) -> Page:
        return Page("application/json", msgspec.json.encode(self._sampler.samples()))

    def _live(self) -> Page:
        return self._probe("running")

    def _ready(self) -> Page:
        return self._probe("ready")

    def _probe(self, wanted: str) -> Page:
        try:
            node = take_status(self._run_dir).node
            holds, why = getattr(node, wanted), "; ".join(node.problems) or node.state
        except (QuiverError, ShmError) as error:
            holds, why = False, str(error)
        text = "ok\n" if holds else f"not {wanted}: {why}\n"
        return Page(
            "text/plain; charset=utf-8", text.encode(), HTTPStatus.OK if holds else HTTPStatus.SERVICE_UNAVAILABLE
        )


def _asset(name: str, content_type: str) -> Page:
    return Page(content_type, files("quiver_actors.observe").joinpath("page", name).read_bytes())


class _Handler(BaseHTTPRequestHandler):
    """GET and HEAD of fixed paths; nothing of a request but its path is used."""

    server_version = "quiver"
    sys_version = ""
    timeout = _REQUEST_PATIENCE_SECONDS

    def do_GET(self) -> None:
        self._answer(with_body=True)

    def do_HEAD(self) -> None:
        self._answer(with_body=False)

    def _answer(self, *, with_body: bool) -> None:
        assert isinstance(self.server, _Server)
        page = self.server.page_of(self.path.partition("?")[0])
        self.send_response(page.status)
        self.send_header("Content-Type", page.content_type)
        self.send_header("Content-Length", str(len(page.body)))
        self.send_header("Cache-Control", "no-store")
        self.send_header("Content-Security-Policy", _POLICY)
        self.send_header("X-Content-Type-Options", "nosniff")
        self.end_headers()
        if with_body:
            self.wfile.write(page.body)

    def address_string(self) -> str:
        # A peer on a Unix socket has no address.
        return str(self.client_address[0]) if self.client_address else "unix"

    def log_message(self, format: str, *args: object) -> None:
        log_event("metrics.request", {"from": self.address_string(), "what": format % args}, logging.DEBUG)


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    page_of: Callable[[str], Page]


class _ServerV6(_Server):
    address_family = socket.AF_INET6


class _UnixServer(_Server):
    address_family = socket.AF_UNIX

    def server_bind(self) -> None:
        assert isinstance(self.server_address, str)
        _clear_stale(self.server_address)
        # Nobody may connect between bind and chmod.
        before = os.umask(0o177)
        try:
            self.socket.bind(self.server_address)
        finally:
            os.umask(before)
        self.server_name, self.server_port = "unix", 0

    def get_request(self) -> tuple[socket.socket, tuple[str, int]]:
        connection, _ = self.socket.accept()
        return connection, ("unix", 0)


def _clear_stale(path: str) -> None:
    """Remove a socket that nobody listens on; anything else in the way stays."""
    try:
        is_socket = stat.S_ISSOCK(os.lstat(path).st_mode)
    except FileNotFoundError:
        return
    if not is_socket:
        raise UsageError(f"{path} is in the way: it is not a socket")
    with socket.socket(socket.AF_UNIX) as probe:
        if probe.connect_ex(path) == 0:
            raise UsageError(f"{path} is in use: another process serves metrics there")
    os.unlink(path)


def _listen(address: Address) -> _Server:
    try:
        if address.path:
            return _UnixServer(address.path, _Handler)  # type: ignore[arg-type]
        kind = _ServerV6 if ":" in address.host else _Server
        return kind((address.host, address.port), _Handler)
    except OSError as error:
        raise UsageError(
            f"cannot listen on {address}: {error.strerror or error}; name another address with --listen"
        ) from error
