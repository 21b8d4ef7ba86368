"""Reads the manifest of a stored segment from its file when somebody asks for it: nothing of it is kept in memory."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from quiver_actors.store.disk.protocol import DiskFile
from quiver_actors.store.segment.codec import decode_manifest
from quiver_actors.store.segment.manifest import Manifest
from quiver_actors.store.segment.reader import read_footer


def ingestion_times_of(file: DiskFile) -> npt.NDArray[np.int64]:
    """UNIX nanoseconds of each bundle; 0 where the manifest does not say.

    Raises:
        DiskError, FormatError: it cannot be read.
    """
    manifest = _manifest_of(file)
    times = manifest.ingestion_ts_nanos
    return np.array([time or 0 for time in times] if times else [0] * manifest.bundle_count, dtype=np.int64)


def entry_sizes_of(file: DiskFile) -> npt.NDArray[np.int64] | None:
    """Bytes of each bundle's log entry; None where the manifest does not say.

    Raises:
        DiskError, FormatError: it cannot be read.
    """
    sizes = _manifest_of(file).byte_count
    return np.array([size or 0 for size in sizes], dtype=np.int64) if sizes else None


def _manifest_of(file: DiskFile) -> Manifest:
    footer = read_footer(file.read, file.size())
    return decode_manifest(file.read(footer.manifest_length, footer.manifest_offset))
