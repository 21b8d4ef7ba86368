"""Who is at the other end of a local socket, as the kernel says it."""

from __future__ import annotations

import os
import socket
import struct
from typing import NamedTuple

from quiver_actors.errors import NotAllowed

_UCRED = struct.Struct("=iII")
_ROOT_UID = 0


class Peer(NamedTuple):
    """Credentials at the moment of connect; a later change of user does not show."""

    pid: int
    uid: int
    gid: int


def peer_of(connection: socket.socket) -> Peer:
    """Ask the kernel for the credentials of a connected Unix socket's peer."""
    return Peer(*_UCRED.unpack(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size)))


def check_peer(peer: Peer) -> None:
    """Let in the worker's own user and root.

    Raises:
        NotAllowed: any other user.
    """
    if peer.uid not in (os.geteuid(), _ROOT_UID):
        raise NotAllowed(
            f"process {peer.pid} of user {peer.uid} may not use this worker, which belongs to user {os.geteuid()}"
        )
