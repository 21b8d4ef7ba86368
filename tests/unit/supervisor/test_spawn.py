"""Forking, in a process of its own: this one has threads and libraries."""

from __future__ import annotations

import subprocess
import sys

import pytest

PRELUDE = """
import os, signal, sys, threading
from quiver_actors.supervisor.errors import UnsafeFork
from quiver_actors.supervisor.spawn import fork_child

def nothing(): pass

def child(run, release=nothing, cpu=None):
    pid = fork_child("a child with a long name", cpu, release, run)
    return os.waitpid(pid, 0)[1]
"""


def run(program: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", PRELUDE + program], capture_output=True, text=True, timeout=60, check=False
    )


def passes(program: str) -> str:
    done = run(program)
    assert done.returncode == 0, done.stderr
    return done.stderr


def test_fork_exits_with_what_run_returns() -> None:
    passes("assert os.WEXITSTATUS(child(lambda: 42)) == 42")


def test_fork_never_unwinds_into_the_parents_frames() -> None:
    passes(
        """
parent = os.getpid()
try:
    status = child(lambda: sys.exit(9))
finally:
    assert os.getpid() == parent
assert os.WEXITSTATUS(status) == 9
"""
    )


def test_fork_child_that_raises_prints_why_and_counts_as_crashed() -> None:
    shown = passes("assert os.WEXITSTATUS(child(lambda: 1 // 0)) == 1")
    assert "ZeroDivisionError" in shown


def test_fork_child_has_default_signals_an_open_mask_and_is_deaf_to_the_terminal() -> None:
    passes(
        """
for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
    signal.signal(number, lambda *_: None)
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
def look():
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
    assert signal.getsignal(signal.SIGINT) == signal.SIG_IGN
    assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    assert signal.getsignal(signal.SIGPIPE) == signal.SIG_IGN
    assert signal.pthread_sigmask(signal.SIG_BLOCK, []) == set()
    return 0
assert child(look) == 0
assert signal.pthread_sigmask(signal.SIG_BLOCK, []) == {signal.SIGUSR1}
"""
    )


def test_fork_child_is_named_pinned_and_dies_with_its_parent() -> None:
    passes(
        """
import ctypes
cpu = max(os.sched_getaffinity(0))
def look():
    assert open("/proc/self/comm").read() == "a child with a \\n"
    assert os.sched_getaffinity(0) == {cpu}
    wanted = ctypes.c_int()
    ctypes.CDLL(None).prctl(2, ctypes.byref(wanted))
    assert wanted.value == signal.SIGKILL
    return 0
assert child(look, cpu=cpu) == 0
"""
    )


def test_fork_to_a_core_that_is_not_there_goes_on_unpinned() -> None:
    passes(
        """
allowed = os.sched_getaffinity(0)
assert child(lambda: os.sched_getaffinity(0) != allowed, cpu=1023) == 0
"""
    )


def test_fork_child_releases_what_the_parent_holds() -> None:
    passes(
        """
reader, writer = os.pipe()
def look():
    try:
        os.fstat(writer)
    except OSError:
        return 0
    return 1
assert child(look, release=lambda: os.close(writer)) == 0
os.fstat(writer)
"""
    )


@pytest.mark.parametrize("library", ["numpy", "pyarrow"])
def test_fork_with_a_data_library_loaded_is_refused(library: str) -> None:
    done = run(f"import {library}\nchild(lambda: 0)")
    assert done.returncode == 1
    assert "UnsafeFork" in done.stderr


def test_fork_with_a_second_thread_is_refused() -> None:
    done = run(
        """
done = threading.Event()
threading.Thread(target=done.wait, daemon=True).start()
try:
    child(lambda: 0)
finally:
    done.set()
"""
    )
    assert done.returncode == 1
    assert "the supervisor has 2 threads" in done.stderr


def test_die_with_a_parent_that_is_gone_already_leaves_at_once() -> None:
    passes(
        """
from quiver_actors.supervisor.spawn import die_with
pid = os.fork()
if pid == 0:
    die_with(os.getppid() + 1)
    os._exit(0)
assert os.WEXITSTATUS(os.waitpid(pid, 0)[1]) == 1
"""
    )
