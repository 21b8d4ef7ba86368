"""An HTTP proxy in front of an object store that lets requests fail as networks and servers do, each kind of request in each way."""

from __future__ import annotations

import contextlib
import http.client
import threading
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

UNAVAILABLE, LOST_ANSWER, TORN_BODY, SLOW = "503", "lost answer", "torn body", "slow"
FAULTS = (UNAVAILABLE, LOST_ANSWER, TORN_BODY, SLOW)
_NOT_PASSED_ON = ("connection", "transfer-encoding", "content-length", "date", "server")


class FaultProxy:
    """Passes requests on. Of each kind every second request fails, in the ways of `FAULTS` one after the other.

    Args:
        port: of the store, on this host.
        kind_of: names the kind of a request by its method and path.
        slow_seconds: how long a slow answer takes: longer than the client waits.
        dropped: names of headers that are not passed on, in lower case.
    """

    def __init__(
        self, port: int, kind_of: Callable[[str, str], str], slow_seconds: float, dropped: Collection[str] = ()
    ) -> None:
        self.port_behind = port
        self.kind_of = kind_of
        self.slow_seconds = slow_seconds
        self.dropped = {"connection", *dropped}
        self.injected: Counter[tuple[str, str]] = Counter()
        self.is_calm = False
        self.stopping = threading.Event()
        self._counts: Counter[str] = Counter()
        self._lock = threading.Lock()
        proxy = self

        class Handler(BaseHTTPRequestHandler):
            """One connection of a client."""

            protocol_version = "HTTP/1.1"

            def handle_one_request(self) -> None:
                with contextlib.suppress(ConnectionError):
                    super().handle_one_request()

            def log_message(self, format: str, *args: object) -> None:
                pass

            def _pass_on(self) -> None:
                proxy.handle(self)

            do_GET = do_PUT = do_HEAD = do_POST = do_DELETE = _pass_on  # noqa: N815

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.port = self._server.server_address[1]
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()

    def fault_for(self, kind: str) -> str:
        """The way in which the next request of a kind fails; empty: it does not."""
        with self._lock:
            self._counts[kind] += 1
            count = self._counts[kind]
            if self.is_calm or count % 2:
                return ""
            fault = FAULTS[count // 2 % len(FAULTS)]
            self.injected[kind, fault] += 1
            return fault

    def handle(self, request: BaseHTTPRequestHandler) -> None:
        """Answer one request."""
        body = request.rfile.read(int(request.headers.get("Content-Length") or 0))
        fault = self.fault_for(self.kind_of(request.command, request.path))
        if fault == UNAVAILABLE:
            request.send_response(503)
            request.send_header("Content-Length", "0")
            request.end_headers()
            return
        if fault == TORN_BODY and body:
            self._tear(request, body)
            request.close_connection = True
            return
        answer, content = self._forward(request, body)
        if fault == LOST_ANSWER:
            request.close_connection = True
            return
        if fault == SLOW:
            self.stopping.wait(self.slow_seconds)
        self._answer(request, answer, content, torn=fault == TORN_BODY)

    def _headers(self, request: BaseHTTPRequestHandler) -> dict[str, str]:
        return {name: value for name, value in request.headers.items() if name.lower() not in self.dropped}

    def _forward(self, request: BaseHTTPRequestHandler, body: bytes) -> tuple[http.client.HTTPResponse, bytes]:
        behind = http.client.HTTPConnection("127.0.0.1", self.port_behind, timeout=30)
        behind.request(request.command, request.path, body or None, self._headers(request))
        answer = behind.getresponse()
        content = answer.read()
        behind.close()
        return answer, content

    def _tear(self, request: BaseHTTPRequestHandler, body: bytes) -> None:
        """Send the store half of a body, and break the connection."""
        behind = http.client.HTTPConnection("127.0.0.1", self.port_behind, timeout=30)
        behind.putrequest(request.command, request.path, skip_host=True, skip_accept_encoding=True)
        for name, value in self._headers(request).items():
            behind.putheader(name, value)
        behind.endheaders()
        behind.send(body[: len(body) // 2])
        behind.close()

    def _answer(
        self, request: BaseHTTPRequestHandler, answer: http.client.HTTPResponse, content: bytes, *, torn: bool
    ) -> None:
        request.send_response(answer.status)
        for name, value in answer.getheaders():
            if name.lower() not in _NOT_PASSED_ON:
                request.send_header(name, value)
        length = answer.getheader("Content-Length") if request.command == "HEAD" else str(len(content))
        request.send_header("Content-Length", length or "0")
        request.end_headers()
        if request.command != "HEAD":
            request.wfile.write(content[: len(content) // 2] if torn else content)
        request.close_connection = request.close_connection or torn

    def stop(self) -> None:
        """End the proxy."""
        self.stopping.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


@contextlib.contextmanager
def fault_proxy(
    port: int, kind_of: Callable[[str, str], str], slow_seconds: float, dropped: Collection[str] = ()
) -> Iterator[FaultProxy]:
    """A proxy for as long as the context lasts."""
    proxy = FaultProxy(port, kind_of, slow_seconds, dropped)
    try:
        yield proxy
    finally:
        proxy.stop()
