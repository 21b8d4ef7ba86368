"""A worker that another user may use, and connections of that user: a second uid where the tests run as root, else none."""

from __future__ import annotations

import contextlib
import ctypes
import grp
import os
import platform
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from quiver_actors.base.config import AccessSettings, NodeSettings
from quiver_actors.base.units import MIB
from tests.unit.node.worker.harness import WireClient, WorkerThread, settings, table, topic

GUEST_UID = 65534
OWNER_UID = 65533
OTHER_UID = 65532
STRANGER_UID = 65531
IS_ROOT = os.geteuid() == 0
AS_ROOT = pytest.mark.skipif(not IS_ROOT, reason="needs root: a second user connects")
_SET_RESUID, _SET_RESGID = {"x86_64": (117, 119), "aarch64": (147, 149)}.get(platform.machine(), (0, 0))


@contextlib.contextmanager
def as_user(uid: int, gid: int) -> Iterator[None]:
    """This thread alone has another effective user and group: the system calls, since the C library changes all threads."""
    libc = ctypes.CDLL(None, use_errno=True)

    def change(number: int, value: int) -> None:
        if libc.syscall(number, -1, value, -1):
            raise OSError(ctypes.get_errno(), "setresuid")

    change(_SET_RESGID, gid)
    try:
        change(_SET_RESUID, uid)
        try:
            yield
        finally:
            change(_SET_RESUID, 0)
    finally:
        change(_SET_RESGID, 0)


def guest_settings(**access: int) -> NodeSettings:
    """Topic `open` is the guest's and the other guest's too, `closed` is not; the default one is not either."""
    group = grp.getgrgid(os.getegid() if not IS_ROOT else 65534).gr_name
    users = {"allowed_uids": (GUEST_UID, OTHER_UID), "owner_uid": OWNER_UID}
    node = settings(topic("open", shared_subscribers=("shared",), **users), topic("closed"))
    limits = {"max_connections": 8, "max_arena_bytes": 4 * MIB, "max_subscribers": 4} | access
    return msgspec.structs.replace(node, access=AccessSettings(group=group, **limits))


class Besieged:
    """A worker with an honest producer of its own user, which must never be disturbed."""

    def __init__(self, node: NodeSettings) -> None:
        self._root = Path(tempfile.mkdtemp(prefix="qv-sec-"))
        self._root.chmod(0o711)
        self.worker = WorkerThread(self._root, node)
        self.worker.run_dir.chmod(0o711)
        self._guests: list[WireClient] = []
        self.honest = self.worker.producer(topic="open")
        self._pushed = 0

    def guest(self, uid: int = GUEST_UID, *, greet: bool = True, name: str = "test") -> WireClient:
        """A new connection of another user (of this one where the tests do not run as root)."""
        with as_user(uid, 65534) if IS_ROOT else contextlib.nullcontext():
            client = WireClient(self.worker.socket_path, greet=greet, name=name)
        self._guests.append(client)
        return client

    def guest_producer(self) -> WireClient:
        client = self.guest()
        client.attach_arena(1 * MIB)
        client.declare(0, table().schema, topic="open")
        return client

    def check_undisturbed(self) -> None:
        """The worker lives, and an honest push is durable and answered."""
        run = self.honest.push_and_wait(table(self._pushed), topic="open")
        assert run.count == 1
        self._pushed += 1

    def close(self) -> None:
        for guest in self._guests:
            guest.close()
        try:
            self.worker.close()
        finally:
            shutil.rmtree(self._root)


@contextlib.contextmanager
def besieged(**access: int) -> Iterator[Besieged]:
    made = Besieged(guest_settings(**access))
    try:
        yield made
        made.check_undisturbed()
    finally:
        made.close()
