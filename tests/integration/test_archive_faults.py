"""An archiver behind a network that fails: each kind of request in each way, with kills in between. Nothing is lost, doubled or half."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import urlsplit

import pytest

from quiver_actors.store.objects.opening import open_store
from tests.integration.capped_node import wait_until
from tests.integration.client_node import client_node, numbers
from tests.integration.test_archive import CONFIG, archived_ids, archived_parts, kill_archiver, status_of
from tests.support.fault_proxy import FAULTS, fault_proxy
from tests.support.object_servers import BUCKET, serving

PUSHES = 9
KINDS = ("PUT crc", "PUT segment", "PUT head", "PUT part", "HEAD segment", "GET head")
"""The requests of an archiver that goes on; others come at its start alone."""


def kind_of(method: str, path: str) -> str:
    """The kind of a request, by what it is about."""
    path = urlsplit(path).path
    endings = {".crc": "crc", ".qseg": "segment", "manifest.head": "head", ".json": "part"}
    about = next((what for ending, what in endings.items() if path.endswith(ending)), "other")
    return f"{method} {about}"


@pytest.mark.long
@pytest.mark.timeout(280)
def test_every_request_fails_in_every_way_and_each_bundle_is_archived_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with serving("moto", tmp_path) as (url, environment):
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        store = open_store(f"{url}/prefix")
        port = urlsplit(environment["AWS_ENDPOINT_URL"]).port
        assert port is not None
        with fault_proxy(port, kind_of, slow_seconds=0.8) as proxy:
            monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{proxy.port}")
            config = CONFIG.replace('retry_interval = "500ms"', 'retry_interval = "100ms"\nrequest_timeout = "500ms"')
            with client_node(config=config.format(url=f"s3://{BUCKET}/prefix")) as node:
                with node.connect() as client:
                    for number in range(PUSHES):
                        client.push(numbers(number))
                        client.flush()
                        if number == 4:
                            kill_archiver(node)
                        found: list[int] = []
                        while len(found) <= number:
                            # What a reader finds meanwhile is whole, in order, and each bundle once: every byte is proven.
                            found = archived_ids(store)
                            assert found == list(range(len(found)))
                wait_until(lambda: (status := status_of(node)) is not None and not status.lag_segments, "no lag", 60)
        missing = [(kind, fault) for kind in KINDS for fault in FAULTS if not proxy.injected[kind, fault]]
        assert missing == []
        rows = [segment for part in archived_parts(store) for segment in part.segments]
        assert [segment.generation for segment in rows] == [0] * PUSHES
        objects = {info.key for info in store.objects("anode/default")}
        assert len(objects) == 2 * PUSHES


def test_a_store_without_conditional_puts_is_refused_until_the_operator_allows_it_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with serving("moto", tmp_path) as (url, environment):
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        store = open_store(f"{url}/prefix")
        port = urlsplit(environment["AWS_ENDPOINT_URL"]).port
        assert port is not None
        with fault_proxy(port, kind_of, 0, dropped=("if-match", "if-none-match")) as proxy:
            proxy.is_calm = True
            monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{proxy.port}")
            with client_node(config=CONFIG.format(url=f"{url}/prefix")) as node, node.connect() as client:
                client.push(numbers(0))
                wait_until(lambda: (status := status_of(node)) is not None and status.state == "refused", "refused", 60)
                found = status_of(node)
                assert found is not None
                assert "archive.single_writer" in found.error
                assert archived_parts(store) == []
                config = node.directories.base / "quiver.toml"
                config.write_text(config.read_text() + "single_writer = true\n")
                node.kill_supervisor()
                node.restart()
                with node.connect() as again:
                    again.push(numbers(1))
                    again.flush(until="archived", timeout=60)
                assert archived_ids(store) == [0, 1]
