"""The version of a data directory: one line of text in its file `quiver.version`.

    file      quiver.version       one line, at most 64 bytes
    text      quiver-data <n>      n: decimal; the version of what the directory holds

| version | written by | what an older program would do wrong with it |
|---|---|---|
| 1 | programs from before version 2 | nothing |
| 2 | former ones | ignore who owns a subscriber, which segments of other writers were announced, and what producers have on other cores |
| 3 | this program | take segments for lost that are on a cold disk, or that a subscriber gets from the archive |

This module owns the name and the text. `node_dirs` reads and writes the file: a start upgrades a directory of an older version before
anything else is written into it, so an older program refuses it from then on.
"""

from __future__ import annotations

from quiver_actors.errors import InvalidFormat, UnsupportedVersion

VERSION_FILE = "quiver.version"
DATA_VERSION = 3
OLDEST_DATA_VERSION = 1
VERSION_TEXT_BYTES_MAX = 64
_NAME = b"quiver-data"
UNFINISHED_RESTORE = _NAME + b" restoring\n"
"""The content of the version file while `quiver restore` fills the directory: every program refuses it."""


def encode_data_version() -> bytes:
    """The content of the version file that this program writes."""
    return b"%s %d\n" % (_NAME, DATA_VERSION)


def parse_data_version(path: str, text: bytes) -> int:
    """Read the version of a data directory from the content of its version file.

    Args:
        path: the file, for the message of an error.
        text: its first `VERSION_TEXT_BYTES_MAX` bytes.

    Returns:
        A version that this program reads: `OLDEST_DATA_VERSION` to `DATA_VERSION`.
    Raises:
        InvalidFormat: the text names no version.
        UnsupportedVersion: it names a version that this program does not read.
    """
    if text == UNFINISHED_RESTORE:
        raise InvalidFormat(f"{path}: `quiver restore` was cut off before this data directory was whole: run it again")
    name, _, number = text.strip().partition(b" ")
    if name != _NAME or not number.isdigit():
        raise InvalidFormat(
            f"{path} does not say 'quiver-data {DATA_VERSION}' but {text!r}: not a data directory of Quiver"
        )
    version = int(number)
    if not OLDEST_DATA_VERSION <= version <= DATA_VERSION:
        raise UnsupportedVersion(
            f"{path} says that the data has version {version}; this program reads versions {OLDEST_DATA_VERSION} to {DATA_VERSION} "
            f"and writes version {DATA_VERSION}: use the program that wrote it, or another --data-dir"
        )
    return version
