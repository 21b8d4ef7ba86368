"""The HTTP side: `/metrics` for Prometheus, `/` for people, `/status.json`, `/history.json`, `/live` and `/ready` for probes.

`/history/<topic>.json` and `/history/<topic>/<subscriber>.json` have the samples for the plots of these pages.

Owner of the listening socket and the sampler. Reads shared memory only, so it answers while workers hang and after the supervisor has
died. It changes nothing and has no secrets beyond the names of topics and subscribers; all the same it listens on loopback or on a Unix
socket unless it is told that others may look.
"""

from __future__ import annotations

import contextlib
import ipaddress
import logging
import os
import re
import socket
import stat
import time
from collections.abc import Callable, Collection, Iterable
from functools import partial
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.resources import files
from typing import NamedTuple

import msgspec
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST

from quiver_actors.base.units import SECOND_NS
from quiver_actors.cli.web.collector import NodeCollector
from quiver_actors.cli.web.history import SAMPLE_INTERVAL_SECONDS, SAMPLES_MAX, Sampler, node_series
from quiver_actors.cli.web.history_file import load_history, save_history
from quiver_actors.cli.web.hosts import are_own
from quiver_actors.cli.web.place_history import series
from quiver_actors.errors import ConfigError, QuiverError, UsageError
from quiver_actors.shm.errors import ShmError
from quiver_actors.store.status.status_view import take_status
from quiver_actors.supervisor.log import log_event

DEFAULT_LISTEN = "127.0.0.1:9465"
_REQUEST_PATIENCE_SECONDS = 10
_UNIX = "unix:"
_ASSETS = ("page.css", "page.js", "draw.js", "format.js", "tables.js")
_TEXT_TYPES = {"html": "html", "css": "css", "js": "javascript"}
_PLACE = re.compile(r"/history/(?P<topic>[A-Za-z0-9_-]{1,64})(/(?P<subscriber>[A-Za-z0-9_-]{1,64}))?\.json")
"""The samples of one topic, or of one subscriber of it."""
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
        raise ConfigError(f"listen address {text!r} can be reached from other machines: give --public to allow that")
    return Address(str(address), int(port))


class Page(NamedTuple):
    """An answer to a browser: type, body and status."""

    content_type: str
    body: bytes
    status: HTTPStatus = HTTPStatus.OK


class MetricsServer:
    """Serves until `close`. `address` is where it really listens."""

    def __init__(self, run_dir: str, address: Address, names: Iterable[str] = ()) -> None:
        """Listen.

        Args:
            names: what requests may call this server besides its address, `localhost` and the name of this machine (`hosts`).

        Raises:
            UsageError: the address is taken or not allowed.
        """
        self._run_dir = run_dir
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(NodeCollector(run_dir))
        window_ns = int(SAMPLES_MAX * SAMPLE_INTERVAL_SECONDS * SECOND_NS)
        self._sampler = Sampler(
            lambda: take_status(run_dir),
            before=load_history(run_dir, time.time_ns() - window_ns),
            keep=partial(save_history, run_dir),
        )
        self._pages: dict[str, Callable[[], Page]] = {
            "/metrics": self._metrics,
            "/status.json": self._status,
            "/history.json": self._history,
            "/live": self._live,
            "/ready": self._ready,
            "/": partial(_asset, "index.html"),
            **{f"/{name}": partial(_asset, name) for name in _ASSETS},
        }
        self._server = _listen(address)
        self._server.page_of = self.page
        self._server.names = {socket.gethostname().lower(), *(name.lower().rstrip(".") for name in names)}
        self._server.checks_names = not address.path
        self.address = address._replace(port=self._server.server_port)

    def serve(self) -> None:
        """Serve until another thread calls `close`, or an interrupt comes."""
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
        named = _PLACE.fullmatch(path)
        if named is not None:
            make = partial(self._place_history, named["topic"], named["subscriber"] or "")
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
        return Page("application/json", msgspec.json.encode(node_series(self._sampler.samples())))

    def _place_history(self, topic: str, subscriber: str) -> Page:
        return Page("application/json", msgspec.json.encode(series(self._sampler.samples(), topic, subscriber)))

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


def _asset(name: str) -> Page:
    content_type = f"text/{_TEXT_TYPES[name.rpartition('.')[2]]}; charset=utf-8"
    return Page(content_type, files("quiver_actors.cli.web").joinpath("page", name).read_bytes())


class _Handler(BaseHTTPRequestHandler):
    """GET and HEAD of fixed paths; nothing of a request but its path and the name that it calls this server by is used."""

    server_version = "quiver"
    sys_version = ""
    timeout = _REQUEST_PATIENCE_SECONDS

    def do_GET(self) -> None:
        self._answer(with_body=True)

    def do_HEAD(self) -> None:
        self._answer(with_body=False)

    def _answer(self, *, with_body: bool) -> None:
        assert isinstance(self.server, _Server)
        page = self._page(self.server)
        self.send_response(page.status)
        self.send_header("Content-Type", page.content_type)
        self.send_header("Content-Length", str(len(page.body)))
        self.send_header("Cache-Control", "no-store")
        self.send_header("Content-Security-Policy", _POLICY)
        self.send_header("X-Content-Type-Options", "nosniff")
        self.end_headers()
        if with_body:
            self.wfile.write(page.body)

    def _page(self, server: _Server) -> Page:
        hosts = self.headers.get_all("Host", [])
        if not server.checks_names or are_own(hosts, server.names):
            return server.page_of(self.path.partition("?")[0])
        text = f"this server is not called {', '.join(hosts)}: name it with quiver metrics --host if it should be\n"
        return Page("text/plain; charset=utf-8", text.encode(), HTTPStatus.MISDIRECTED_REQUEST)

    def address_string(self) -> str:
        # A peer on a Unix socket has no address.
        return str(self.client_address[0]) if self.client_address else "unix"

    def log_message(self, format: str, *args: object) -> None:
        log_event("metrics.request", {"from": self.address_string(), "what": format % args}, logging.DEBUG)


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    page_of: Callable[[str], Page]
    names: Collection[str]
    checks_names: bool
    """False behind a Unix socket, which no browser reaches."""


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
        raise UsageError(f"{path} exists and is not a socket: remove it, or name another path with --listen")
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
