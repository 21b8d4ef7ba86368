"""The catalogue: every topic of a node with the settings that hold for it. One file in the data directory.

Source: docs/formats.md section 9, "List of topics: `quiver.topics`".

Owner: the supervisor, who alone writes it: the new file is durable under a temporary name before it takes the place of the old one, so
that a crash leaves the one or the other. Workers and commands read it, and say which version they have read.

A damaged catalogue is never guessed at: the previous one is used where it is whole, and opening fails where that is damaged too.
"""

from __future__ import annotations

import errno

from quiver_actors.base.topics import Catalogue
from quiver_actors.errors import DiskError, FormatError, InvalidFormat
from quiver_actors.store.disk.protocol import Disk, read_whole, write_atomically
from quiver_actors.store.files.topic_list import (
    CATALOGUE_BYTES_MAX,
    CATALOGUE_NAME,
    PREVIOUS_NAME,
    decode_catalogue,
    encode_catalogue,
)
from quiver_actors.store.format.framing import DAMAGE


def read_catalogue(disk: Disk) -> Catalogue | None:
    """The catalogue of a data directory; None where there never was one.

    Raises:
        FormatError: it and the one before are damaged, or written by a newer program.
        DiskError: it cannot be read.
    """
    damage: FormatError | None = None
    for name in (CATALOGUE_NAME, PREVIOUS_NAME):
        try:
            return decode_catalogue(read_whole(disk, name, CATALOGUE_BYTES_MAX))
        except DAMAGE as error:
            damage = damage or error
        except DiskError as error:
            if error.errno != errno.ENOENT:
                raise
    if damage is not None:
        raise InvalidFormat(
            f"the list of topics cannot be read, nor {PREVIOUS_NAME}. Move both files away: the topics of the configuration and those "
            f"found on disk are then taken over with the settings of the configuration. {damage}"
        )
    return None


def write_catalogue(disk: Disk, catalogue: Catalogue) -> None:
    """Make a catalogue durable in place of the one before. Raises DiskError: the one before still holds."""
    if disk.exists(CATALOGUE_NAME):
        write_atomically(disk, PREVIOUS_NAME, read_whole(disk, CATALOGUE_NAME, CATALOGUE_BYTES_MAX))
    write_atomically(disk, CATALOGUE_NAME, encode_catalogue(catalogue))
    disk.sync_directory(".")
