"""Jobs through a real thread."""

from __future__ import annotations

import functools
import os
import select
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from quiver_actors.node.worker.threads import AskThread, JobThread
from tests.support.descriptors import reused_numbers

PATIENCE_SECONDS = 60.0


class Call:
    def __init__(self, work: Callable[[], object]) -> None:
        self._work = work

    def run(self) -> None:
        self._work()


@pytest.fixture
def wake_fd() -> Iterator[int]:
    descriptor = os.eventfd(0, os.EFD_NONBLOCK)
    yield descriptor
    os.close(descriptor)


def wait_for_wake(wake_fd: int) -> None:
    assert select.select([wake_fd], [], [], PATIENCE_SECONDS)[0], "no job ended in time"
    os.eventfd_read(wake_fd)


def test_jobs_run_elsewhere_in_order_and_are_finished_here(wake_fd: int) -> None:
    thread = JobThread("test", wake_fd)
    ran: list[tuple[int, str]] = []
    finished: list[tuple[int, str]] = []

    def note(where: list[tuple[int, str]], number: int) -> None:
        where.append((number, threading.current_thread().name))

    for number in range(20):
        work = functools.partial(note, ran, number)
        thread.submit(Call(work), functools.partial(note, finished, number))
    while len(finished) < 20:
        wait_for_wake(wake_fd)
        thread.finish_jobs()
    assert ran == [(number, "test") for number in range(20)]
    assert finished == [(number, threading.current_thread().name) for number in range(20)]
    assert thread.stop(PATIENCE_SECONDS)


def test_stop_lets_submitted_jobs_end(wake_fd: int) -> None:
    thread = JobThread("test", wake_fd)
    ran: list[int] = []
    thread.submit(Call(lambda: ran.append(1)), lambda: None)
    assert thread.stop(PATIENCE_SECONDS)
    assert ran == [1]


def test_stop_gives_up_on_a_job_that_does_not_end(wake_fd: int) -> None:
    thread = JobThread("test", wake_fd)
    gate = threading.Event()
    thread.submit(Call(lambda: gate.wait(PATIENCE_SECONDS)), lambda: None)
    assert not thread.stop(0.01)
    gate.set()
    assert thread.stop(PATIENCE_SECONDS)


def test_error_that_escapes_a_job_is_raised_in_the_loop(wake_fd: int) -> None:
    thread = JobThread("test", wake_fd)

    def fail() -> None:
        raise ZeroDivisionError("bug")

    thread.submit(Call(fail), lambda: None)
    wait_for_wake(wake_fd)
    with pytest.raises(ZeroDivisionError, match="bug"):
        thread.finish_jobs()
    assert thread.stop(PATIENCE_SECONDS)


def test_a_question_that_ends_after_the_loop_writes_to_no_file_of_anybody_else(tmp_path: Path) -> None:
    wake_fd = os.eventfd(0, os.EFD_NONBLOCK)
    thread = AskThread("asks nobody", wake_fd)
    begun, gate = threading.Event(), threading.Event()

    def ask() -> None:
        begun.set()
        gate.wait(PATIENCE_SECONDS)

    thread.submit(Call(ask), lambda: None)
    assert begun.wait(PATIENCE_SECONDS)
    assert thread.stop(0)
    os.close(wake_fd)
    with reused_numbers(tmp_path) as files:
        gate.set()
        for each in threading.enumerate():
            if each.name == "asks nobody":
                each.join(PATIENCE_SECONDS)
                assert not each.is_alive()
        assert [file.stat().st_size for file in files] == [0] * len(files)
