"""A node whose log nobody reads serves as any other."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from quiver_actors.client import connect
from tests.integration.client_node import numbers, take
from tests.integration.node_process import DEADLINE_SECONDS, ROOT, Directories, command_line

TOPICS = 20


@contextmanager
def full_pipe() -> Iterator[int]:
    """A pipe that takes nothing more, and that nobody reads."""
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    try:
        while True:
            os.write(writer, bytes(1 << 16))
    except BlockingIOError:
        pass
    os.set_blocking(writer, True)
    try:
        yield writer
    finally:
        os.close(reader)
        os.close(writer)


@pytest.fixture
def directories() -> Iterator[Directories]:
    found = Directories()
    try:
        yield found
    finally:
        found.remove()


def test_nobody_reads_the_log_from_the_start_on(directories: Directories) -> None:
    arguments = ["up", "--cores", "2", "--data-dir", str(directories.data), "--run-dir", str(directories.run)]
    command = command_line("quiver_actors.cli.main", *arguments)
    with full_pipe() as log, subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=log) as node:
        try:
            assert node.stdout is not None
            assert node.stdout.readline(), "it says that every worker is ready"
            with connect(directories.run, timeout=DEADLINE_SECONDS) as client:
                for number in range(TOPICS):
                    client.create_topic(f"topic{number}")
                    client.push(numbers(number), topic=f"topic{number}")
                client.flush("topic0")
                with client.subscribe("s", topic="topic0", start="earliest") as deliveries:
                    take(deliveries, 1)[0].ack().wait()
            node.terminate()
            assert node.wait(DEADLINE_SECONDS) == 0
        finally:
            node.kill()
