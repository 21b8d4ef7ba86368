"""A file that holds a token of `quiver serve`: what it must look like before what is in it is believed to be secret."""

from __future__ import annotations

import os
import stat

from quiver_actors.errors import ConfigError, DiskError

_TOKEN_BYTES_MAX = 4096


def read_token(path: str) -> str:
    """The token in a file, without the white space around it.

    The file belongs to this user or to root, and nobody else can read or write it. One of root may be readable by its group: so a service
    manager hands a secret to a service.

    Raises:
        DiskError: the file cannot be read.
        ConfigError: others can read or write it, it belongs to another user, or it holds no token.
    """
    try:
        with open(path, "rb") as file:
            found = os.fstat(file.fileno())
            content = file.read(_TOKEN_BYTES_MAX + 1)
    except OSError as error:
        raise DiskError("read", path, error.errno or 0) from error
    _check_secret(path, found)
    try:
        token = content.decode("ascii").strip()
    except UnicodeDecodeError:
        token = ""
    if not token.isprintable() or not 0 < len(token) <= _TOKEN_BYTES_MAX:
        raise ConfigError(
            f"{path} holds no token: expected one line of up to {_TOKEN_BYTES_MAX} printable ASCII characters"
        )
    return token


def _check_secret(path: str, found: os.stat_result) -> None:
    if found.st_uid not in (0, os.geteuid()):
        raise ConfigError(
            f"token file {path} belongs to user {found.st_uid}, who can change it: expected user {os.geteuid()} or root"
        )
    mode = stat.S_IMODE(found.st_mode)
    allowed = 0o640 if found.st_uid == 0 else 0o600
    if mode & 0o077 & ~allowed:
        raise ConfigError(f"token file {path} has mode {mode:04o}: others can use it; run: chmod {allowed:o} {path}")
