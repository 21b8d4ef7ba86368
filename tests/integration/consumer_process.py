"""A consumer in a process of its own, which can be killed and stopped."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import time

from quiver_actors.base.model import DEFAULT_TOPIC
from tests.integration.node_process import ROOT, command_line

DEADLINE_SECONDS = 60.0


class ConsumerProcess:
    """A process of `sharing_consumer` and what it has acknowledged."""

    def __init__(self, run_dir: str, subscriber: str, lease: float, topic: str = DEFAULT_TOPIC) -> None:
        self.is_stopped = False
        self.has_left = False
        self.acked: list[tuple[int, int]] = []
        """Bundle and delivery count, of complete lines."""
        self._rest = b""
        command = command_line("tests.integration.sharing_consumer", run_dir, subscriber, str(lease), topic)
        self.process = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert self.process.stdout is not None
        self.fd = self.process.stdout.fileno()
        assert self.process.stdout.readline() == b"ready\n"
        os.set_blocking(self.fd, False)

    def read(self) -> None:
        """Take in what it has said so far."""
        while chunk := self._chunk():
            *lines, self._rest = (self._rest + chunk).split(b"\n")
            self.acked += [(int(number), int(count)) for number, count in (line.split() for line in lines)]

    def wait_acked(self, wanted: set[int]) -> None:
        """Read until the acknowledgements of these numbers are durable."""
        deadline = time.monotonic() + DEADLINE_SECONDS
        while not wanted.issubset({number for number, _ in self.acked}):
            assert time.monotonic() < deadline, f"{self.acked} of {wanted}"
            select.select([self.fd], [], [], 0.05)
            self.read()

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(DEADLINE_SECONDS)
        self.read()
        self._close()

    def stop(self) -> None:
        self.process.send_signal(signal.SIGSTOP)
        self.is_stopped = True

    def resume(self) -> None:
        self.process.send_signal(signal.SIGCONT)
        self.is_stopped = False

    def end(self) -> None:
        if self.has_left:
            return
        if self.is_stopped:
            self.resume()
        assert self.process.stdin is not None
        self.process.stdin.close()
        os.set_blocking(self.fd, True)
        self.read()
        assert self.process.wait(DEADLINE_SECONDS) == 0
        self._close()

    def _close(self) -> None:
        self.has_left = True
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                pipe.close()

    def _chunk(self) -> bytes:
        try:
            return os.read(self.fd, 1 << 16)
        except BlockingIOError:
            return b""
