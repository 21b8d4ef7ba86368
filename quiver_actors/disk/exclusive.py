"""Files that are made once: whoever is first decides what is in them, for every process of the machine.

Used for decisions of transactions. A file appears under its name whole and durable, or not at all, and is never replaced.
"""

from __future__ import annotations

import contextlib
import os
import secrets

_FILE_MODE = 0o640
_DIRECTORY_MODE = 0o750


def create_once(directory: str, name: str, content: bytes) -> bool:
    """Make `directory/name` with that content, durably.

    Returns:
        False if a file of that name was there first; it is durable then, and what counts.

    Raises:
        OSError: neither is certain; the same call may be made again.
    """
    _make_directory(directory)
    temporary = os.path.join(directory, f".{name}.{secrets.token_hex(8)}.tmp")
    try:
        _write_durably(temporary, content)
        # A link fails where the name is taken; a rename would replace what was decided.
        os.link(temporary, os.path.join(directory, name))
        is_ours = True
    except FileExistsError:
        is_ours = False
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary)
    # Also where another one was first: it may not have come to its own sync yet.
    _sync_directory(directory)
    return is_ours


def remove_once(directory: str, name: str) -> None:
    """Delete such a file, durably. Nothing if it is not there."""
    with contextlib.suppress(FileNotFoundError):
        os.unlink(os.path.join(directory, name))
        _sync_directory(directory)


def _write_durably(path: str, content: bytes) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, _FILE_MODE)
    try:
        written = 0
        while written < len(content):
            written += os.write(descriptor, content[written:])
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _make_directory(directory: str) -> None:
    if os.path.isdir(directory):
        return
    parent = os.path.dirname(os.path.abspath(directory))
    _make_directory(parent)
    with contextlib.suppress(FileExistsError):
        os.mkdir(directory, _DIRECTORY_MODE)
    _sync_directory(parent)


def _sync_directory(directory: str) -> None:
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
