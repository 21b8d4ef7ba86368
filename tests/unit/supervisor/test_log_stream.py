"""A log whose reader does not read: nobody waits for it, and the number of lines that it missed is told."""

from __future__ import annotations

import errno
import json
import logging
import os
import select
import socket
from collections.abc import Callable, Iterator

import pytest

from quiver_actors.supervisor.log import configure_logging, log_event

ENOUGH_LINES = 6_000
"""More than any of the readers has room for."""


@pytest.fixture(autouse=True)
def logging_as_before() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    for handler in root.handlers[:]:
        if handler not in handlers:
            handler.close()
    root.handlers[:] = handlers
    root.setLevel(level)


def a_pipe() -> tuple[int, int]:
    return os.pipe()


def a_socket() -> tuple[int, int]:
    reader, writer = socket.socketpair()
    return reader.detach(), writer.detach()


def a_terminal() -> tuple[int, int]:
    return os.openpty()


def read_now(descriptor: int) -> bytes:
    """Return everything that can be read without waiting."""
    found = []
    while select.select([descriptor], [], [], 0)[0]:
        try:
            piece = os.read(descriptor, 1 << 16)
        except OSError as error:
            assert error.errno == errno.EIO  # noqa: PT017 - a terminal whose other end is closed
            break
        if not piece:
            break
        found.append(piece)
    return b"".join(found)


def log_lines(first: int, count: int, text: str = "") -> None:
    """Write lines as errors, so that none of them is left out as a repeat."""
    for number in range(first, first + count):
        log_event("turn", {"topic": f"t{number}", "text": text}, logging.ERROR)


@pytest.mark.parametrize("kind", [a_pipe, a_socket, a_terminal])
def test_a_reader_that_stops_reading_stops_nobody_and_is_told_what_it_missed(
    kind: Callable[[], tuple[int, int]],
) -> None:
    reader, writer = kind()
    with os.fdopen(writer, "w") as stream:
        configure_logging(stream, "info", "json")
        log_lines(0, ENOUGH_LINES)
        first = read_now(reader)
        log_lines(ENOUGH_LINES, 1)
        lines = [json.loads(line) for line in (first + read_now(reader)).splitlines()]
    os.close(reader)
    # A terminal may make room on its own, now and then: each gap is told where it is, and how long it is.
    number = 0
    for line in lines:
        if line["event"] == "quiver.log.lost":
            number += line["lines"]
        else:
            assert line["topic"] == f"t{number}"
            number += 1
    assert number == ENOUGH_LINES + 1
    assert [line["event"] for line in lines[-2:]] == ["quiver.log.lost", "quiver.turn"]


def test_a_line_that_fits_in_part_is_finished_when_there_is_room() -> None:
    reader, writer = os.pipe()
    with os.fdopen(writer, "w") as stream:
        configure_logging(stream, "info", "json")
        log_lines(0, 3, "x" * 30_000)
        first = read_now(reader)
        assert not first.endswith(b"\n")
        log_lines(3, 1)
        lines = [json.loads(line) for line in (first + read_now(reader)).splitlines()]
    os.close(reader)
    assert [line["topic"] for line in lines] == ["t0", "t1", "t2", "t3"]


def test_a_reader_that_is_gone_stops_nobody() -> None:
    reader, writer = os.pipe()
    with os.fdopen(writer, "w") as stream:
        configure_logging(stream, "info", "json")
        os.close(reader)
        log_lines(0, 3)


def test_whether_others_wait_on_the_same_pipe_stays_as_it_was() -> None:
    reader, writer = os.pipe()
    with os.fdopen(writer, "w") as stream:
        configure_logging(stream)
        assert os.get_blocking(writer)
    os.close(reader)
