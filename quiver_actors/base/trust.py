"""Decides whether this program may send its data to the node of a run directory: who can have made the directory, and who answers in it.

The default place of a run directory may lie where every user can make directories (`/tmp`), so what is found there is not believed before
it is known whose it is. A run directory is trusted if nobody but its owner can write to it, and

- only root can change any directory on the way to it, so that root has put it there (`/run/quiver` of a service user); or
- it belongs to this user, to root, or to a user that was named (`named_users`), and so do the links on the way to it that others than
  root could have made.

Whoever then answers on a socket must be one of these users, or in the first case the directory's owner. The kernel says who listens there
(`SO_PEERCRED`), of the socket that is connected: so it does not matter what was exchanged since the directory was looked at. Users are
effective user ids as this process's user namespace shows them.
"""

from __future__ import annotations

import contextlib
import os
import socket
import stat
import struct
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

from quiver_actors.errors import ConfigError, UntrustedNode

VARIABLE = "QUIVER_TRUSTED_UID"
_UID_MAX = (1 << 32) - 2
_LINKS_MAX = 40
"""Most symbolic links followed on one path; the kernel has the same limit."""
_PEER = struct.Struct("=iII")  # struct ucred: pid, uid, gid
_WRITABLE_BY_OTHERS = stat.S_IWGRP | stat.S_IWOTH


class TrustedDirectory(NamedTuple):
    """A run directory that is trusted."""

    descriptor: int
    """File descriptor of the directory itself, to open files below it."""
    peers: frozenset[int]
    """Ids of the users who may listen on a socket in the directory."""


def named_users(trusted_uid: int | None = None, environment: Mapping[str, str] | None = None) -> frozenset[int]:
    """The users whose nodes are trusted beside those of this user and root: the given one, and that of `$QUIVER_TRUSTED_UID`.

    Raises:
        ConfigError: one of them is no user id.
    """
    text = (os.environ if environment is None else environment).get(VARIABLE, "")
    named = set() if trusted_uid is None else {_checked(trusted_uid, "trusted_uid")}
    if text:
        named.add(_checked(int(text) if text.isdecimal() else text, VARIABLE))
    return frozenset(named)


def _checked(uid: object, what: str) -> int:
    if not isinstance(uid, int) or isinstance(uid, bool) or not 0 <= uid <= _UID_MAX:
        raise ConfigError(f"{what} is {uid!r}: expected the number of a user, as `id -u NAME` prints it")
    return uid


@contextlib.contextmanager
def trusted_directory(path: str, named: frozenset[int]) -> Iterator[TrustedDirectory]:
    """Open a run directory, if it is trusted.

    Args:
        path: absolute.

    Raises:
        UntrustedNode: it is not; says whose it is.
        OSError: it is not there, or cannot be opened.
    """
    descriptor = os.open(path, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield TrustedDirectory(descriptor, _peers(path, os.fstat(descriptor), named))
    finally:
        os.close(descriptor)


def check_peer(connected: socket.socket, peers: frozenset[int]) -> None:
    """
    Args:
        peers: the users who may listen there.

    Raises:
        UntrustedNode: who listens behind a connected socket is none of the users that may.
    """
    _, uid, _ = _PEER.unpack(connected.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size))
    if uid not in peers:
        raise UntrustedNode(
            f"{connected.getpeername()} is served by user {uid}, who is not trusted: expected {_users(peers)}; {_advice(uid)}"
        )


def supervisor_check(run_dir: str, trusted_uid: int | None = None) -> Callable[[socket.socket], None]:
    """What `control.request` asks of a connected socket before it sends anything: that it is the supervisor of a trusted run directory.

    Args:
        trusted_uid: a user whose node is trusted too.

    Raises:
        ConfigError: that is no user id. The check itself raises UntrustedNode, or OSError where the directory is gone.
    """
    named = named_users(trusted_uid)

    def check(connected: socket.socket) -> None:
        with trusted_directory(os.path.abspath(run_dir), named) as directory:
            check_peer(connected, directory.peers)

    return check


def _peers(path: str, found: os.stat_result, named: frozenset[int]) -> frozenset[int]:
    trusted = named | {0, os.geteuid()}
    if found.st_mode & _WRITABLE_BY_OTHERS:
        raise UntrustedNode(
            f"run directory {path} is not trusted: others than its owner can write to it (mode {stat.S_IMODE(found.st_mode):04o}); "
            "a node makes its own directory, with mode 0700 or 0750"
        )
    way = _way_to(path)
    if way.is_roots:
        return trusted | {found.st_uid}
    for owner, what in ((found.st_uid, path), *way.links):
        if owner not in trusted:
            raise UntrustedNode(
                f"run directory {path} is not trusted: {what} belongs to user {owner}, and not only root can make directories on the way "
                f"to it; expected {_users(trusted)}; {_advice(owner)}"
            )
    return trusted


def _users(uids: frozenset[int]) -> str:
    return "user " + " or ".join(map(str, sorted(uids)))


def _advice(uid: int) -> str:
    return (
        f"if the node of user {uid} is meant, say so with {VARIABLE}={uid}, connect(trusted_uid={uid}) or Spark option trustedUid; "
        "else name another run directory (QUIVER_RUN_DIR)"
    )


class _Way(NamedTuple):
    """The links and directories that a path leads through."""

    is_roots: bool
    """Whether only root can change where the path leads."""
    links: tuple[tuple[int, str], ...]
    """Owner and path of each symbolic link on the path that lies where users other than root can make links."""


def _way_to(path: str) -> _Way:
    """Follow an absolute path, name by name, as the kernel does."""
    rest, at, links_left = _names(path), "/", _LINKS_MAX
    is_roots, links = True, list[tuple[int, str]]()
    while rest:
        is_roots_here = _is_roots(os.lstat(at))
        is_roots = is_roots and is_roots_here
        name = rest.pop()
        inner = os.path.dirname(at) if name == ".." else os.path.join(at, name)
        found = os.lstat(inner)
        if not stat.S_ISLNK(found.st_mode):
            at = inner
            continue
        links_left -= 1
        if not links_left:
            raise UntrustedNode(f"run directory {path} is not trusted: more than {_LINKS_MAX} links lead to it")
        if not is_roots_here:
            links.append((found.st_uid, inner))
        target = os.readlink(inner)
        at = "/" if target.startswith("/") else at
        rest += _names(target)
    return _Way(is_roots, tuple(links))


def _names(path: str) -> list[str]:
    """Return the names in a path, the last first."""
    return [name for name in reversed(path.split("/")) if name not in ("", ".")]


def _is_roots(directory: os.stat_result) -> bool:
    """Whether only root can make and replace files in the directory."""
    return directory.st_uid == 0 and not directory.st_mode & _WRITABLE_BY_OTHERS
