"""What the supervisor tells the outside: log lines, the service manager, exit codes; and what it reads from /proc."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from quiver_actors.supervisor.exitcodes import describe_wait_status
from quiver_actors.supervisor.log import format_event
from quiver_actors.supervisor.notify import Notifier
from quiver_actors.supervisor.process import STOPPED_STATES, is_alive, process_state


@pytest.mark.parametrize(
    ("fields", "line"),
    [
        ({}, "quiver.x"),
        ({"pid": 7, "path": "/run/a-b", "gone": None}, "quiver.x pid=7 path=/run/a-b"),
        ({"reason": 'no "room" left'}, 'quiver.x reason="no \\"room\\" left"'),
        ({"reason": "two\nlines"}, 'quiver.x reason="two\\nlines"'),
        ({"empty": ""}, 'quiver.x empty=""'),
    ],
)
def test_format_event_is_one_line_of_pairs(fields: dict[str, object], line: str) -> None:
    assert format_event("x", fields) == line


@pytest.mark.parametrize(
    ("status", "text"),
    [
        (0, "exit 0 (drained)"),
        (4 << 8, "exit 4 (cannot_open)"),
        (6 << 8, "exit 6 (engine_failed)"),
        (77 << 8, "exit 77"),
        (int(signal.SIGKILL), "SIGKILL"),
        (int(signal.SIGABRT) | 0x80, "SIGABRT"),
        (40, "signal 40"),
    ],
)
def test_describe_wait_status(status: int, text: str) -> None:
    assert describe_wait_status(status) == text


@pytest.mark.parametrize("abstract", [False, True])
def test_notifier_sends_one_datagram_a_message(abstract: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    name = f"quiver-test-{os.getpid()}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.settimeout(30)
        manager.bind(f"\0{name}" if abstract else name)
        environment = {"NOTIFY_SOCKET": f"@{name}" if abstract else name, "WATCHDOG_USEC": "3000000", "PATH": "/bin"}
        notifier = Notifier.take_from(environment)
        assert environment == {"PATH": "/bin"}
        assert notifier.watchdog_interval_ns == 1_500_000_000
        notifier.ready("ready")
        notifier.watchdog()
        notifier.stopping()
        assert [manager.recv(100) for _ in range(3)] == [b"READY=1\nSTATUS=ready", b"WATCHDOG=1", b"STOPPING=1"]


def test_notifier_is_silent_where_nobody_listens() -> None:
    Notifier.take_from({}).ready("ready")
    Notifier.take_from({"NOTIFY_SOCKET": "/nobody/is/here"}).ready("ready")


def test_notifier_leaves_another_process_s_watchdog_alone() -> None:
    environment = {"WATCHDOG_USEC": "3000000", "WATCHDOG_PID": str(os.getpid() + 1)}
    assert Notifier.take_from(environment).watchdog_interval_ns == 0


def test_process_state_follows_stop_continue_and_end() -> None:
    process = subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"])
    try:
        assert is_alive(process.pid)
        process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, process.pid, os.WSTOPPED)
        assert process_state(process.pid) in STOPPED_STATES
        assert is_alive(process.pid)
        process.send_signal(signal.SIGCONT)
        os.waitid(os.P_PID, process.pid, os.WCONTINUED)
        assert process_state(process.pid) not in STOPPED_STATES
        process.kill()
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        assert process_state(process.pid) == "Z"
        assert not is_alive(process.pid)
    finally:
        process.kill()
        process.wait()
    assert process_state(process.pid) is None
