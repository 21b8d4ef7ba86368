"""Object stores to test against: in memory, in a directory, and real servers. A server that is not installed here is skipped, visibly."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import hmac
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request
import uuid
from collections.abc import Callable, Iterator
from email.utils import formatdate
from pathlib import Path

import boto3
import pytest
from botocore.config import Config

BUCKET = "quiver-tests"
START_SECONDS = 60.0
_ACCOUNT = "devstoreaccount1"
_KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
"""The account that azurite makes, and its key, which its documentation prints."""


def free_port() -> int:
    """A port that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def installed(name: str) -> str | None:
    """The path of a server's program, if it is installed."""
    found = shutil.which(name)
    directories = [*os.environ.get("QUIVER_TEST_SERVERS", "").split(":"), str(Path.home() / "go/bin")]
    places = [Path(each) / name for each in directories if each]
    return found or next((str(place) for place in places if place.exists()), None)


class Server:
    """One running server, its URL for the archive, and the environment in which clients find it."""

    def __init__(self, command: list[str], url: str, environment: dict[str, str], port: int) -> None:
        self.url = url
        self.environment = environment
        self._process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        deadline = time.monotonic() + START_SECONDS
        while not _listens(port):
            if self._process.poll() is not None or time.monotonic() > deadline:
                self.stop()
                raise RuntimeError(f"{command[0]} did not begin to listen on port {port}")

    def pause(self) -> None:
        """Stop its process: requests are taken and not answered."""
        self._process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Let it go on."""
        self._process.send_signal(signal.SIGCONT)

    def stop(self) -> None:
        """Kill the server and wait for its end."""
        self._process.kill()
        self._process.wait()


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        probe.settimeout(0.1)
        return probe.connect_ex(("127.0.0.1", port)) == 0


def s3_environment(port: int) -> dict[str, str]:
    """The environment for a server of S3's protocol on this host."""
    return {
        "AWS_ACCESS_KEY_ID": "quivertest",
        "AWS_SECRET_ACCESS_KEY": "quiversecret",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_REGION": "us-east-1",
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}",
    }


def make_bucket(environment: dict[str, str]) -> None:
    """Make the bucket of the tests."""
    boto3.client(
        "s3",
        endpoint_url=environment["AWS_ENDPOINT_URL"],
        region_name="us-east-1",
        aws_access_key_id=environment["AWS_ACCESS_KEY_ID"],
        aws_secret_access_key=environment["AWS_SECRET_ACCESS_KEY"],
        config=Config(retries={"max_attempts": 10}),
    ).create_bucket(Bucket=BUCKET)


def moto(directory: Path) -> Server:
    """Start moto's S3."""
    port = free_port()
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    server = Server(command, f"s3://{BUCKET}", s3_environment(port), port)
    make_bucket(server.environment)
    return server


def versitygw(directory: Path) -> Server:
    """Start versitygw over a directory."""
    program = installed("versitygw")
    if program is None:
        pytest.skip("versitygw is not installed: go install github.com/versity/versitygw/cmd/versitygw@latest")
    port = free_port()
    environment = s3_environment(port)
    access, secret = environment["AWS_ACCESS_KEY_ID"], environment["AWS_SECRET_ACCESS_KEY"]
    (directory / "root").mkdir()
    command = [
        program,
        "--access",
        access,
        "--secret",
        secret,
        "--port",
        f"127.0.0.1:{port}",
        "posix",
        str(directory / "root"),
    ]
    server = Server(command, f"s3://{BUCKET}", environment, port)
    make_bucket(environment)
    return server


def azurite(directory: Path) -> Server:
    """Start azurite's blob service."""
    program = installed("azurite-blob")
    if program is None:
        pytest.skip("azurite is not installed: npm install -g azurite@3.35.0")
    port = free_port()
    command = [program, "--blobPort", str(port), "--location", str(directory), "--silent", "--skipApiVersionCheck"]
    endpoint = f"http://127.0.0.1:{port}"
    environment = {
        "AZURE_STORAGE_USE_EMULATOR": "true",
        "AZURITE_BLOB_STORAGE_URL": endpoint,
        "AZURE_STORAGE_ACCOUNT_NAME": _ACCOUNT,
        "AZURE_STORAGE_ACCOUNT_KEY": _KEY,
    }
    server = Server(command, f"az://{BUCKET}", environment, port)
    make_container(endpoint)
    return server


def make_container(endpoint: str) -> None:
    """Make the container of the tests, by a request that the account's key signs."""
    headers = {"x-ms-date": formatdate(usegmt=True), "x-ms-version": "2021-08-06"}
    canonical = "\n".join(f"{name}:{headers[name]}" for name in sorted(headers))
    resource = f"/{_ACCOUNT}/{_ACCOUNT}/{BUCKET}\nrestype:container"
    text = "PUT" + "\n" * 12 + canonical + "\n" + resource
    signature = base64.b64encode(hmac.new(base64.b64decode(_KEY), text.encode(), hashlib.sha256).digest()).decode()
    headers |= {"Authorization": f"SharedKey {_ACCOUNT}:{signature}", "Content-Length": "0"}
    request = urllib.request.Request(f"{endpoint}/{_ACCOUNT}/{BUCKET}?restype=container", method="PUT", headers=headers)
    urllib.request.urlopen(request, timeout=30).close()


SERVERS: dict[str, Callable[[Path], Server]] = {"moto": moto, "versitygw": versitygw, "azurite": azurite}
KINDS = ("memory", "directory", *SERVERS)


@contextlib.contextmanager
def serving(kind: str, directory: Path) -> Iterator[tuple[str, dict[str, str]]]:
    """URL and environment of a store of a kind that lives as long as the context."""
    if kind == "memory":
        yield f"memory://{uuid.uuid4().hex}", {}
    elif kind == "directory":
        yield f"file://{directory}/archive", {}
    else:
        server = SERVERS[kind](directory)
        try:
            yield server.url, server.environment
        finally:
            server.stop()
