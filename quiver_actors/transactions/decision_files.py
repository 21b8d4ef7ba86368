"""The common part of decision files on a disk of this machine (`local_files`), in an object store (`store_files`), and on any file
system that Arrow knows (`arrow_files`).

Where there are files, one is made under a temporary name that tells when. What a killed process leaves of it means nothing, and is
deleted before the first decision that somebody else makes an hour later.

Owner: any process; nothing is kept open between two calls, but the connection of an Arrow file system.
"""

from __future__ import annotations

import re
import secrets
import time
from typing import Protocol

DECISION_BYTES_MAX = 256 << 20
LEFT_OVER_AFTER_SECONDS = 3600
"""Age of a temporary file after which its writer counts as dead; a writer that is alive after all has to try again."""
_TEMPORARY = re.compile(r"\..+\.([0-9a-f]{8,16})-[0-9a-f]{16}\.tmp")


def new_token() -> str:
    """A part of a temporary file's name that says when the file was made, and that no other file has."""
    return f"{int(time.time()):08x}-{secrets.token_hex(8)}"


def is_left_over(name: str) -> bool:
    """Whether the name is that of a temporary file whose writer counts as dead."""
    match = _TEMPORARY.fullmatch(name)
    return match is not None and int(match[1], 16) + LEFT_OVER_AFTER_SECONDS < time.time()


class DecisionFiles(Protocol):
    """Files of one directory. Raises OSError, DiskError or ArchiveError."""

    def read(self, name: str) -> bytes | None:
        """Return the content of the file, which is durable from then on; None if there is no file."""

    def create(self, name: str, content: bytes) -> None:
        """Create the file unless it exists. Of several concurrent calls exactly one succeeds, and no call returns before that."""

    def remove(self, name: str) -> None:
        """Delete a decision and everything that was kept about how it was made."""
