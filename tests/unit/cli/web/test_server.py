"""Addresses, and what is answered where no node is."""

from __future__ import annotations

import http.client
import json
import os
import re
import socket
import stat
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from quiver_actors.cli.web.hosts import are_own
from quiver_actors.cli.web.server import Address, MetricsServer, parse_address
from quiver_actors.errors import ConfigError, UsageError


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("127.0.0.1:9465", Address("127.0.0.1", 9465)),
        ("localhost:1", Address("127.0.0.1", 1)),
        (":0", Address("127.0.0.1", 0)),
        ("9465", Address("127.0.0.1", 9465)),
        ("[::1]:80", Address("::1", 80)),
        ("unix:/run/x.sock", Address("", 0, "/run/x.sock")),
    ],
)
def test_addresses(text: str, address: Address) -> None:
    assert parse_address(text) == address


@pytest.mark.parametrize(
    "text", ["", "host", "127.0.0.1:", "127.0.0.1:70000", "127.0.0.1:²", "example.org:80", "unix:"]
)
def test_addresses_that_are_none(text: str) -> None:
    with pytest.raises(ConfigError, match="listen address"):
        parse_address(text)


def test_other_machines_are_let_in_only_on_request() -> None:
    with pytest.raises(ConfigError, match="--public"):
        parse_address("0.0.0.0:9465")
    assert parse_address("0.0.0.0:9465", public=True) == Address("0.0.0.0", 9465)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[MetricsServer]:
    made = MetricsServer(str(tmp_path), parse_address("127.0.0.1:0"), ["Node-7.example"])
    thread = threading.Thread(target=made.serve)
    thread.start()
    yield made
    made.close()
    thread.join()


def get(
    server: MetricsServer, path: str, method: str = "GET", headers: Mapping[str, str] = {}
) -> tuple[int, bytes, http.client.HTTPMessage]:
    connection = http.client.HTTPConnection(server.address.host, server.address.port, timeout=30)
    try:
        connection.request(method, path, headers=dict(headers))
        answer = connection.getresponse()
        return answer.status, answer.read(), answer.headers
    finally:
        connection.close()


def test_without_a_node_the_server_says_so(server: MetricsServer) -> None:
    status, body, _ = get(server, "/metrics")
    assert (status, b"quiver_up 0.0" in body) == (200, True)
    assert get(server, "/live")[0] == 503
    status, body, _ = get(server, "/status.json")
    assert (status, b"no node is running" in body) == (503, True)


def test_the_page_loads_nothing_from_elsewhere(server: MetricsServer) -> None:
    status, body, headers = get(server, "/")
    assert status == 200
    assert b"http" not in body
    assert "default-src 'none'" in headers["Content-Security-Policy"]
    named = set(re.findall(rb'(?:href|src)="([a-z]+\.(?:css|js))"', body))
    assert named == {b"page.css", b"page.js"}
    while named:
        # A script names the scripts that it needs.
        status, text, _ = get(server, f"/{named.pop().decode()}")
        assert status == 200
        named |= set(re.findall(rb'from "\./([a-z.]+)"', text))


@pytest.mark.parametrize("path", ["/nothing", "/../server.py", "/page/../../server.py", "//etc/passwd", "/%2e%2e/x"])
def test_other_paths_are_not_found(server: MetricsServer, path: str) -> None:
    status, body, _ = get(server, path)
    assert (status, b"/metrics" in body) == (404, True)


def test_each_topic_and_subscriber_has_a_history_of_its_own(server: MetricsServer) -> None:
    until = time.monotonic() + 60
    while not json.loads(get(server, "/history.json")[1]):
        assert time.monotonic() < until, "the first sample is taken at once"
    for path, field in (("/history/clicks.json", "disk_bytes"), ("/history/clicks/billing.json", "lag_bundles")):
        status, body, headers = get(server, path)
        assert (status, headers["Content-Type"]) == (200, "application/json")
        assert {field, "running", "unix_ns"} < set(json.loads(body)[0])
    for path in ("/history/.json", "/history/a/b/c.json", "/history/%2e%2e/x.json", f"/history/{'n' * 65}.json"):
        assert get(server, path)[0] == 404


def test_nothing_but_reading_is_offered(server: MetricsServer) -> None:
    assert get(server, "/metrics", "POST")[0] == 501
    status, body, headers = get(server, "/metrics", "HEAD")
    assert (status, body) == (200, b"")
    assert int(headers["Content-Length"]) > 0


def test_a_page_of_another_site_reads_nothing_through_a_name_that_leads_here(server: MetricsServer) -> None:
    for path in ("/status.json", "/metrics", "/", "/live", "/page.js"):
        status, body, _ = get(server, path, headers={"Host": f"evil.example:{server.address.port}"})
        assert (status, b"evil.example" in body) == (421, True)
    names = ["localhost", "127.0.0.1:1", "[::1]:9465", "10.0.0.7", socket.gethostname(), "node-7.EXAMPLE:80"]
    assert [get(server, "/status.json", headers={"Host": name})[0] for name in names] == [503] * len(names)


@pytest.mark.parametrize(
    ("host", "is_own"),
    [
        ("localhost:9465", True),
        ("LOCALHOST.", True),
        ("page.localhost", True),
        ("[fe80::1]", True),
        ("1.2.3.4.", False),
        ("notlocalhost", False),
        ("localhost.example", False),
        ("0x7f000001", False),
        ("", False),
        ("evil@localhost", False),
    ],
)
def test_host_headers(host: str, is_own: bool) -> None:
    assert are_own([host], ()) == is_own
    assert are_own([host, "evil.example"], ()) is False
    assert are_own([], ())


def test_a_taken_port_is_named(server: MetricsServer, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="--listen"):
        MetricsServer(str(tmp_path), server.address)


def test_a_unix_socket_is_private_replaces_a_stale_one_and_goes_with_the_server(tmp_path: Path) -> None:
    path = tmp_path / "m.sock"
    with socket.socket(socket.AF_UNIX) as left_behind:
        left_behind.bind(str(path))
    made = MetricsServer(str(tmp_path), parse_address(f"unix:{path}"))
    assert stat.S_IMODE(os.stat(path).st_mode) == 0o600
    with pytest.raises(UsageError, match="in use"):
        MetricsServer(str(tmp_path), parse_address(f"unix:{path}"))
    thread = threading.Thread(target=made.serve)
    thread.start()
    with socket.socket(socket.AF_UNIX) as client:
        client.settimeout(30)
        client.connect(str(path))
        client.sendall(b"GET /live HTTP/1.0\r\n\r\n")
        assert client.recv(4096).startswith(b"HTTP/1.0 503")
    made.close()
    thread.join()
    assert not path.exists()


def test_a_path_too_long_for_a_unix_socket_is_told(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="path too long"):
        MetricsServer(str(tmp_path), parse_address(f"unix:{tmp_path / ('x' * 120)}"))


def test_a_file_in_the_way_of_a_unix_socket_stays(tmp_path: Path) -> None:
    path = tmp_path / "m.sock"
    path.write_text("precious")
    with pytest.raises(UsageError, match="is not a socket"):
        MetricsServer(str(tmp_path), parse_address(f"unix:{path}"))
    assert path.read_text() == "precious"
