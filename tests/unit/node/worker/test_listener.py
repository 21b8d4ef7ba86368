"""The socket's name in the run directory, and who may come in."""

from __future__ import annotations

import os
import socket
import stat
from pathlib import Path

import pytest

from quiver_actors.node.worker.listener import Listener
from quiver_actors.node.worker.peer import Peer, peer_of


def connect(path: Path) -> socket.socket:
    client = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    client.connect(str(path))
    return client


def test_name_leads_to_a_private_listening_socket_and_goes_with_it(tmp_path: Path) -> None:
    path = tmp_path / "core_0.sock"
    listener = Listener(str(tmp_path), "core_0.sock")
    assert os.listdir(tmp_path) == ["core_0.sock"]
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert listener.accept() is None
    with connect(path) as client:
        accepted = listener.accept()
        assert accepted is not None
        with accepted:
            assert peer_of(accepted) == Peer(os.getpid(), os.geteuid(), os.getegid())
        client.settimeout(10)
        assert client.recv(1) == b""
    listener.close()
    listener.close()
    assert os.listdir(tmp_path) == []


def test_socket_of_a_dead_worker_is_replaced(tmp_path: Path) -> None:
    dead = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    dead.bind(str(tmp_path / "core_0.sock"))
    dead.close()
    (tmp_path / "core_0.sock.tmp").touch()
    listener = Listener(str(tmp_path), "core_0.sock")
    with connect(tmp_path / "core_0.sock"):
        accepted = listener.accept()
        assert accepted is not None
        accepted.close()
    listener.close()


def test_missing_run_directory_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        Listener(str(tmp_path / "missing"), "core_0.sock")


def test_a_group_may_be_let_in(tmp_path: Path) -> None:
    listener = Listener(str(tmp_path), "core_0.sock", os.getegid())
    found = os.stat(tmp_path / "core_0.sock")
    assert (stat.S_IMODE(found.st_mode), found.st_gid) == (0o660, os.getegid())
    listener.close()
