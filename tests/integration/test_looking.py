"""Looking at a node: once and again, for people and for programs, on a terminal and off it."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
from collections.abc import Iterator

import pytest

from tests.integration.client_node import ClientNode, client_node, numbers
from tests.integration.node_process import DEADLINE_SECONDS, ROOT, command_line
from tests.unit.cli.test_reference import WATCHED

LOOKS = sorted("quiver topics show default" if name == "quiver topics show" else name for name in WATCHED)


@pytest.fixture(scope="module")
def node() -> Iterator[ClientNode]:
    with client_node() as started:
        with started.connect() as client:
            client.subscribe("reader").close()
            client.push(numbers(1))
        yield started


def command(node: ClientNode, look: str, *more: str) -> list[str]:
    words = [*look.split()[1:], *more, "--run-dir", str(node.directories.run)]
    return command_line("quiver_actors.cli.main", *words)


@pytest.mark.parametrize("look", LOOKS)
def test_json_is_one_object_a_look_with_its_version(node: ClientNode, look: str) -> None:
    watched = subprocess.Popen(
        command(node, look, "--json", "--watch", "0.05"), cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    try:
        assert watched.stdout is not None
        found = [json.loads(watched.stdout.readline()) for _ in range(2)]
        watched.send_signal(signal.SIGINT)
        assert watched.wait(DEADLINE_SECONDS) == 0
    finally:
        watched.kill()
        watched.communicate()
    assert [each["schema_version"] for each in found] == [1, 1]


@pytest.mark.parametrize("look", LOOKS)
def test_off_a_terminal_there_is_no_colour_and_no_cleared_screen(node: ClientNode, look: str) -> None:
    done = subprocess.run(command(node, look), cwd=ROOT, capture_output=True, timeout=DEADLINE_SECONDS, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout
    assert b"\x1b" not in done.stdout + done.stderr


def test_status_on_a_terminal_is_watched_as_top_shows_it(node: ClientNode) -> None:
    ours, theirs = pty.openpty()
    watched = subprocess.Popen(
        command(node, "quiver status", "--watch", "0.05"), cwd=ROOT, stdout=theirs, stderr=theirs
    )
    os.close(theirs)
    try:
        seen = b""
        while b"BUNDLES/S" not in seen or b"PRESSURE" not in seen:
            seen += os.read(ours, 4096)
        watched.send_signal(signal.SIGINT)
        while True:
            try:
                os.read(ours, 4096)
            except OSError:
                break  # the other end is closed
        assert watched.wait(DEADLINE_SECONDS) == 0
    finally:
        watched.kill()
        watched.communicate()
        os.close(ours)


def test_on_a_terminal_each_look_takes_the_place_of_the_one_before(node: ClientNode) -> None:
    ours, theirs = pty.openpty()
    watched = subprocess.Popen(
        command(node, "quiver topics list", "--watch", "0.05"), cwd=ROOT, stdout=theirs, stderr=theirs
    )
    os.close(theirs)
    try:
        seen = b""
        while seen.count(b"\x1b[H\x1b[2J") < 2 or not seen.endswith(b"\n"):
            seen += os.read(ours, 4096)
        watched.send_signal(signal.SIGINT)
        assert watched.wait(DEADLINE_SECONDS) == 0
    finally:
        watched.kill()
        watched.communicate()
        os.close(ours)
    assert b"default" in seen
