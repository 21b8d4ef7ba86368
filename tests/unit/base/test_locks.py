"""Locks under interrupts: what an exception of a signal handler leaves behind."""

from __future__ import annotations

import itertools
import signal
import threading

import pytest

from quiver_actors.base.locks import new_lock

INTERRUPTS = 1000


class Interrupt(Exception):
    """What the signal handler of the test raises."""


def use(lock: threading.Lock) -> None:
    while True:
        with lock:
            pass


def wait_for(lock: threading.Lock) -> None:
    """Wait for a lock that another thread has; an interrupt comes meanwhile."""
    signal.setitimer(signal.ITIMER_REAL, 0.01)
    with lock:
        pytest.fail("two threads have it")


def interrupted(lock: threading.Lock, delay_us: int) -> None:
    """Take the lock and give it back until an interrupt comes."""
    try:
        signal.setitimer(signal.ITIMER_REAL, delay_us / 1e6)
        use(lock)
    except Interrupt:
        pass


def test_an_interrupt_never_leaves_a_lock_taken() -> None:
    """Regression: on Python 3.14 an interrupt between the two halves of `with` left it taken, and all other threads waited for ever."""

    def interrupt(*_: object) -> None:
        raise Interrupt

    former = signal.signal(signal.SIGALRM, interrupt)
    try:
        lock = new_lock()
        for delay_us in itertools.islice(itertools.cycle(range(30, 300, 7)), INTERRUPTS):
            interrupted(lock, delay_us)
            assert not lock.locked()
    finally:
        signal.signal(signal.SIGALRM, former)


def test_an_interrupt_while_a_thread_waits_for_a_lock_leaves_its_holder_alone() -> None:
    def interrupt(*_: object) -> None:
        raise Interrupt

    lock, is_taken, may_end = new_lock(), threading.Event(), threading.Event()

    def hold() -> None:
        with lock:
            is_taken.set()
            may_end.wait()

    holder = threading.Thread(target=hold)
    holder.start()
    former = signal.signal(signal.SIGALRM, interrupt)
    try:
        is_taken.wait()
        with pytest.raises(Interrupt):
            wait_for(lock)
        assert lock.locked()
    finally:
        signal.signal(signal.SIGALRM, former)
        may_end.set()
        holder.join()
    assert not lock.locked()
