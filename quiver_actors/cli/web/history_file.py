"""The history of the status page on disk, so that it outlives the process that serves the page.

    file      <run directory>/metrics-history.json     0600, written anew
    content   a JSON list of `history.Sample`, oldest first

Owner: the `quiver metrics` that serves the run directory. The file is a convenience: it is not synced, a damaged one is ignored, and where
it cannot be written the page does without.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence

import msgspec

from quiver_actors.cli.web.history import SAMPLES_MAX, Sample

NAME = "metrics-history.json"
_SIZE_BYTES_MAX = 16 << 20
"""Samples with `place_history.PLACES_MAX` topics and subscribers of the longest names take half of it."""


def load_history(run_dir: str, since_unix_ns: int) -> list[Sample]:
    """The kept samples that are not older than `since_unix_ns`; none where there is no file of this user's that can be read."""
    try:
        with open(os.path.join(run_dir, NAME), "rb", opener=_open_own) as file:
            samples = msgspec.json.decode(file.read(_SIZE_BYTES_MAX), type=list[Sample])
    except (OSError, msgspec.DecodeError, UnicodeDecodeError):
        return []
    return [sample for sample in samples if sample.unix_ns >= since_unix_ns][-SAMPLES_MAX:]


def save_history(run_dir: str, samples: Sequence[Sample]) -> None:
    """Write the samples anew; a run directory that is not there, or not this user's, is left alone."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
    with contextlib.suppress(OSError):
        descriptor = os.open(os.path.join(run_dir, NAME), flags, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(msgspec.json.encode(samples))


def _open_own(path: str, flags: int) -> int:
    """Open a file of this user's; another user's is refused as if it were not there."""
    descriptor = os.open(path, flags | os.O_NOFOLLOW | os.O_CLOEXEC)
    if os.fstat(descriptor).st_uid != os.geteuid():
        os.close(descriptor)
        raise FileNotFoundError(path)
    return descriptor
