"""Somebody else's run directory: a client sends nothing there, unless root has put the directory where it is, or its user was named.

The node is `Peer`, which another user runs where the tests run as root.
"""

from __future__ import annotations

import asyncio
import codecs
import contextlib
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import quiver_actors.aio
from quiver_actors.base.protocol.topic_requests import List, ask
from quiver_actors.base.trust import VARIABLE
from quiver_actors.cli.main import main
from quiver_actors.client import connect
from quiver_actors.client.node_view import NodeDirectory
from quiver_actors.errors import NotRunning, UntrustedNode
from quiver_actors.spark.connection import forget_client, node_client
from tests.security.guest import AS_ROOT, GUEST_UID, OWNER_UID, as_user
from tests.unit.client.peer import Peer

BATCH = pa.record_batch({"n": [1, 2, 3]})
GID = 65534
codecs.lookup("ascii")  # loaded now: another user may not read the files of this interpreter


@pytest.fixture(autouse=True)
def nobody_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)


@pytest.fixture
def sticky() -> Iterator[Path]:
    """A directory like `/tmp`: everybody can make directories in it."""
    base = Path(tempfile.mkdtemp(prefix="qv-trust-"))
    base.chmod(0o1777)
    yield base
    shutil.rmtree(base)


@pytest.fixture
def roots() -> Iterator[Path]:
    """A directory like `/run`: only root can make directories in it."""
    base = Path(tempfile.mkdtemp(prefix="qv-trust-", dir="/run"))
    base.chmod(0o755)
    yield base
    shutil.rmtree(base)


@contextlib.contextmanager
def node_of(uid: int, path: Path, mode: int = 0o755) -> Iterator[Peer]:
    """A node that a user runs in its own directory."""
    path.mkdir()
    os.chown(path, uid, GID)
    path.chmod(mode)
    with as_user(uid, GID):
        peer = Peer(path)
        peer.__enter__()
    (path / "core_0.sock").chmod(0o777)
    try:
        yield peer
    finally:
        peer.__exit__()


def push(run_dir: Path, **options: Any) -> None:
    with connect(run_dir, timeout=30, **options) as client:
        client.push(BATCH, timeout=30)


@AS_ROOT
@pytest.mark.parametrize("victim", [0, OWNER_UID])
def test_a_directory_that_somebody_made_where_all_can_gets_nothing(sticky: Path, victim: int) -> None:
    with node_of(GUEST_UID, sticky / "quiver") as peer:
        with (
            as_user(victim, GID),
            pytest.raises(UntrustedNode, match=f"belongs to user {GUEST_UID}.*{VARIABLE}={GUEST_UID}"),
        ):
            push(peer.run_dir)
        with as_user(victim, GID), pytest.raises(UntrustedNode):
            asyncio.run(push_async(peer.run_dir))
        assert peer.received == []


async def push_async(run_dir: Path, **options: Any) -> None:
    async with quiver_actors.aio.connect(run_dir, timeout=30, **options) as client:
        await client.push(BATCH, timeout=30)


@AS_ROOT
def test_a_user_who_is_named_is_trusted_by_all_ways_to_name_it(sticky: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with node_of(GUEST_UID, sticky / "quiver") as peer:
        push(peer.run_dir, trusted_uid=GUEST_UID)
        asyncio.run(push_async(peer.run_dir, trusted_uid=GUEST_UID))
        node_client(str(peer.run_dir), trusted_uid=GUEST_UID).push(BATCH)
        with pytest.raises(UntrustedNode):
            node_client(str(peer.run_dir))  # the client that was kept is for those who named the user
        forget_client(str(peer.run_dir), trusted_uid=GUEST_UID)
        with pytest.raises(UntrustedNode):
            push(peer.run_dir, trusted_uid=OWNER_UID)
        monkeypatch.setenv(VARIABLE, str(GUEST_UID))
        push(peer.run_dir)
        assert len(peer.stored) == 4


@AS_ROOT
@pytest.mark.parametrize("victim", [0, OWNER_UID])
def test_a_service_users_directory_that_root_has_put_there_is_trusted(roots: Path, victim: int) -> None:
    with node_of(GUEST_UID, roots / "quiver", 0o750) as peer, as_user(victim, GID):
        push(peer.run_dir)
        assert len(peer.stored) == 1


@AS_ROOT
def test_a_directory_that_others_can_write_to_is_not_trusted_wherever_it_is(roots: Path) -> None:
    for mode in (0o777, 0o1777, 0o775):
        with (
            node_of(GUEST_UID, roots / "quiver", mode) as peer,
            pytest.raises(UntrustedNode, match=f"others than its owner can write to it.*{mode:04o}"),
        ):
            push(peer.run_dir, trusted_uid=GUEST_UID)
        shutil.rmtree(roots / "quiver")


@AS_ROOT
@pytest.mark.parametrize("place", ["sticky", "roots"])
def test_whoever_took_the_place_of_a_socket_since_the_look_gets_nothing(
    place: str, request: pytest.FixtureRequest
) -> None:
    base: Path = request.getfixturevalue(place)
    with node_of(OWNER_UID, base / "quiver") as honest, node_of(GUEST_UID, base / "other") as hostile:
        with as_user(OWNER_UID, GID):
            client = connect(honest.run_dir, timeout=30)
        (hostile.run_dir / "core_0.sock").rename(honest.run_dir / "core_0.sock")
        with as_user(OWNER_UID, GID), client, pytest.raises(UntrustedNode, match=f"is served by user {GUEST_UID}"):
            client.push(BATCH, timeout=30)
        assert hostile.received == []


@AS_ROOT
def test_a_directory_that_was_exchanged_since_the_look_gets_nothing(sticky: Path) -> None:
    with node_of(0, sticky / "quiver") as honest, node_of(GUEST_UID, sticky / "other") as hostile:
        directory = NodeDirectory(str(honest.run_dir))
        honest.run_dir.rename(sticky / "aside")
        hostile.run_dir.rename(sticky / "quiver")
        with pytest.raises(UntrustedNode):
            directory.connect(0)
        assert hostile.sessions == []


@AS_ROOT
def test_a_link_that_somebody_made_where_all_can_leads_nowhere(sticky: Path) -> None:
    with node_of(0, sticky / "mine") as peer:
        link = sticky / "quiver"
        link.symlink_to(peer.run_dir)
        push(link)
        os.lchown(link, GUEST_UID, GID)
        # Linux may refuse to follow it before the client does (fs.protected_symlinks).
        with pytest.raises((UntrustedNode, NotRunning)):
            push(link)
        assert len(peer.stored) == 1


@AS_ROOT
def test_a_link_that_root_made_is_followed(roots: Path) -> None:
    with node_of(GUEST_UID, roots / "quiver") as peer:
        (roots / "link").symlink_to("../../" + str(roots / "quiver").lstrip("/"))
        push(roots / "link")
        assert len(peer.stored) == 1


@AS_ROOT
def test_a_supervisor_of_somebody_else_is_asked_nothing(sticky: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with node_of(GUEST_UID, sticky / "quiver") as peer:
        (peer.run_dir / "core_0.sock").rename(peer.run_dir / "supervisor.sock")
        with pytest.raises(UntrustedNode):
            ask(str(peer.run_dir), List())
        assert main(["topics", "list", "--run-dir", str(peer.run_dir)]) == 2
        assert "is not trusted" in capsys.readouterr().err
        assert peer.received == []


def test_the_own_directory_where_all_can_make_one_is_trusted(sticky: Path) -> None:
    path = sticky / "quiver"
    path.mkdir(mode=0o700)
    with Peer(path) as peer:
        push(path)
        path.chmod(0o770)
        assert path.stat().st_mode & stat.S_IWGRP
        with pytest.raises(UntrustedNode, match="mode 0770"):
            push(path)
        assert len(peer.stored) == 1
