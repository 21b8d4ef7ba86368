"""Whoever wakes a loop that closes writes to no other file."""

from __future__ import annotations

import os
import threading

from quiver_actors.node.worker.loop_wake import LoopWake


def test_waking_raises_the_eventfd() -> None:
    descriptor = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
    wake = LoopWake(descriptor)
    wake.wake()
    wake.wake()
    assert os.eventfd_read(descriptor) == 2
    wake.close()


def test_waking_beside_a_close_neither_fails_nor_writes_to_another_file() -> None:
    for _ in range(200):
        wake = LoopWake(os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK))
        closing, errors = threading.Event(), list[BaseException]()

        def call(
            wake: LoopWake = wake, closing: threading.Event = closing, errors: list[BaseException] = errors
        ) -> None:
            closing.wait()
            try:
                for _ in range(20):
                    wake.wake()
            except OSError as error:
                errors.append(error)

        callers = [threading.Thread(target=call) for _ in range(3)]
        for caller in callers:
            caller.start()
        closing.set()
        wake.close()
        other = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        for caller in callers:
            caller.join()
        try:
            assert errors == []
            assert _is_unraised(other)
        finally:
            os.close(other)


def _is_unraised(descriptor: int) -> bool:
    try:
        os.eventfd_read(descriptor)
    except BlockingIOError:
        return True
    return False
