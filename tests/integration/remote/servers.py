"""Servers of remote clients for tests: `quiver serve` with TLS and a token, and one that stores and never answers."""

from __future__ import annotations

import subprocess
import threading
from pathlib import Path

from quiver_actors.client import Client
from quiver_actors.errors import (
    QuiverError,
)
from quiver_actors.flight.client import RemoteClient, connect_remote
from tests.integration import flight_tls
from tests.integration.client_node import ClientNode, numbers
from tests.integration.node_process import command_line

CONFIG = """
[retention]
size_cap = "1GiB"

[segment]
target_size = "1MiB"

[topics.travel]
slots = { flights = 3, weather = 7 }

[topics.other]
[topics.lost]
[topics.holes]
[topics.full]
[topics.full.retention]
cap_share = "2%"
size_cap_policy = "reject"
"""
SERVE_CONFIG = """
[serve]
memory = "512MiB"
"""
DEADLINE_SECONDS = 60.0


class Served:
    """`quiver serve` with TLS and a token, which is started again on the same port."""

    def __init__(self, node: ClientNode, directory: Path) -> None:
        self.certificate, self._key = flight_tls.written_to(directory)
        self.token_file = directory / "token"
        self.token_file.write_text("a secret")
        self.token_file.chmod(0o600)
        self._config = directory / "serve.toml"
        self._config.write_text(SERVE_CONFIG)
        self._node = node
        self.url = "grpc+tls://127.0.0.1:0"
        self.start()

    def start(self) -> None:
        address = self.url.rpartition("/")[2]
        options = [
            "--run-dir",
            str(self._node.directories.run),
            "--listen",
            address,
            "--token-file",
            str(self.token_file),
            "--config",
            str(self._config),
        ]
        options += ["--tls-cert", str(self.certificate), "--tls-key", str(self._key)]
        command = command_line("quiver_actors.cli.main", "serve", *options)
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line.startswith("quiver serving:"), line
        self.url = line.partition("location=")[2].partition(" ")[0]

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()

    def connect(self) -> RemoteClient:
        return connect_remote(self.url, token_file=self.token_file, tls_roots=self.certificate)


class Stalling:
    """A server in a process of its own that stores and does not answer."""

    def __init__(self, node: ClientNode) -> None:
        command = command_line("tests.integration.remote.stalling_server", str(node.directories.run), "0")
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        self._said = self._process.stdout
        self.port = int(self._said.readline())

    def kill_when_stored(self) -> None:
        assert self._said.readline() == "stored\n"
        self._process.kill()
        self._process.wait()
        self._said.close()


def pushing(client: RemoteClient, told: list[object], number: int, **key: object) -> threading.Thread:
    """Push in a thread, and append the receipt or the error to `told`."""

    def push() -> None:
        try:
            told.append(client.push(numbers(number), topic="lost", **key))  # type: ignore[arg-type]
        except QuiverError as error:
            told.append(error)

    thread = threading.Thread(target=push)
    thread.start()
    return thread


def stored(client: Client, topic: str) -> list[int]:
    """The first values of all bundles of a topic that have a row."""
    found = [bundle.batch for core in client.readable(topic) for bundle in client.read(topic, core)]
    return [batch.column(0)[0].as_py() for batch in found if batch.num_rows]
