"""Identity of the process at the other end of a local socket, as the kernel reports it."""

from __future__ import annotations

import socket
import struct
from typing import NamedTuple

_UCRED = struct.Struct("=iII")


class Peer(NamedTuple):
    """Credentials at the moment of connect; a later change of user does not show."""

    pid: int
    uid: int
    gid: int


def peer_of(connection: socket.socket) -> Peer:
    """Ask the kernel for the credentials of a connected Unix socket's peer."""
    return Peer(*_UCRED.unpack(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size)))
