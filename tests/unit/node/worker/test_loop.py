"""The worker's loop turn by turn, where a thread that serves would hardly ever meet the moment."""

from __future__ import annotations

import errno
import os
import select
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from quiver_actors.base.config import NodeSettings
from quiver_actors.base.protocol import messages as m
from quiver_actors.node.worker.listener import Listener
from tests.support.descriptors import reused_numbers
from tests.unit.node.worker.harness import WorkerThread, settings


class SteppedWorker(WorkerThread):
    """The test makes the turns."""

    def _serve(self) -> None:
        """Not in a thread."""

    def step(self) -> None:
        assert self.worker.loop.step(waits=False)

    def close(self) -> None:
        self.worker.loop.request_drain()
        super()._serve()
        super().close()


@contextmanager
def stepped(root: Path, node: NodeSettings | None = None) -> Iterator[SteppedWorker]:
    worker = SteppedWorker(root, node or settings())
    try:
        yield worker
    finally:
        worker.close()


def test_a_connection_that_pauses_in_the_turn_in_which_it_can_be_read_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Regression: an earlier poll result for the connection was taken for its end."""
    monkeypatch.setattr("quiver_actors.node.worker.session.UNSENT_BYTES_MAX", 1 << 15)
    with stepped(tmp_path) as worker:
        client = worker.connect(greet=False)
        client.send(m.Hello(m.PROTOCOL_VERSION, os.getpid(), "test"))
        worker.step()
        loop = worker.worker.loop
        (session,) = loop.connections.sessions.values()
        asked = 0
        while not session.must_pause:
            # Its answers say the long name again.
            client.send(m.Flush(asked, "t" * 10_000))
            asked += 1
            worker.step()
        loop._turn([(session.connection.fd, select.EPOLLIN)], time.monotonic_ns())
        assert not session.is_closed
        client.socket.settimeout(0.01)
        answered: set[int] = set()
        while len(answered) < asked:
            worker.step()
            try:
                message = client.receive()
            except TimeoutError:
                continue
            assert message is not None, "the connection has ended"
            if isinstance(message, m.Refused):
                answered.add(message.tag)


def test_a_worker_without_descriptors_rests_with_clients_at_the_door_of_an_adopted_core(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The worker stops watching that door; it used to stay open, and the loop ran without a pause and wrote a line each time."""
    monkeypatch.setattr("quiver_actors.node.worker.loop._SWEEP_INTERVAL_NS", 1 << 60)
    (tmp_path / "data" / "default" / "core_1").mkdir(parents=True)
    tries: list[int] = []

    def without_descriptors(listener: Listener) -> socket.socket | None:
        tries.append(listener.fd)
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    with stepped(tmp_path) as worker, socket.socket(socket.AF_UNIX) as client:
        client.connect(str(tmp_path / "run" / "core_1.sock"))
        with monkeypatch.context() as poor:
            poor.setattr(Listener, "accept", without_descriptors)
            for _ in range(20):
                worker.step()
            # Once before the first sweep and once behind it, which comes in the first turn.
            assert 1 <= len(tries) <= 2


def test_a_signal_that_comes_when_the_loop_is_closed_writes_to_no_file_of_anybody_else(tmp_path: Path) -> None:
    with stepped(tmp_path) as worker:
        loop = worker.worker.loop
    with reused_numbers(tmp_path) as files:
        loop.request_drain()
        loop.request_intake_stop()
        assert [file.stat().st_size for file in files] == [0] * len(files)
