"""The number of workers of a data directory as bytes: one line of text, the content of `quiver.cores`. Pure codec.

    file      quiver.cores                            one line, at most 128 bytes
    text      quiver-cores 1 <cores> <generation>     decimal

This module owns the name and the text. `node.core_generation` reads and writes the file.
"""

from __future__ import annotations

from typing import NamedTuple

from quiver_actors.errors import InvalidFormat

CORES_FILE = "quiver.cores"
CORES_BYTES_MAX = 128
CORES_NAME, CORES_VERSION = "quiver-cores", "1"


class CoreGeneration(NamedTuple):
    """The content of the file."""

    cores: int
    generation: int

    def encode(self) -> bytes:
        """Return the content of the file: one line of ASCII."""
        return f"{CORES_NAME} {CORES_VERSION} {self.cores} {self.generation}\n".encode()


def decode_core_generation(text: bytes) -> CoreGeneration:
    """Raises InvalidFormat: it is not a line of that kind."""
    parts = text.decode("ascii", "replace").split(" ")
    if len(parts) == 4 and parts[:2] == [CORES_NAME, CORES_VERSION] and parts[3].endswith("\n"):
        cores, generation = parts[2], parts[3].removesuffix("\n")
        if cores.isdecimal() and generation.isdecimal() and int(cores) > 0:
            return CoreGeneration(int(cores), int(generation))
    raise InvalidFormat(
        f"{CORES_FILE} holds {text[:40]!r}: expected `{CORES_NAME} {CORES_VERSION} <cores> <generation>`"
    )
