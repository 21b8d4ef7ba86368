"""The part of each stream that is still to be archived, as the status shows it: counted from what workers hold, whatever the store does."""

from __future__ import annotations

import threading
from collections.abc import Callable

import msgspec

from quiver_actors.base.archive_status import ArchivedStream
from quiver_actors.client.hold import HeldCore


def with_lag(topic: str, core: int, held: HeldCore, known: ArchivedStream | None) -> ArchivedStream:
    """A stream with what its worker holds and the archive does not have. Pure.

    Args:
        known: what the manifest has of it; None, or that of another incarnation: it was not read yet, as after a start while the store
            is away. What the worker was told to be archived counts then.
    """
    if known is None or known.incarnation != held.incarnation:
        known = ArchivedStream(topic=topic, core=core, incarnation=held.incarnation)
        through = _acknowledged_through(held)
    else:
        through = known.archived_through
    missing = [info for info in held.segments if info.segment_seq > through]
    times = [info.first_ingestion_ts_nanos for info in (*missing, *held.unsealed)]
    return msgspec.structs.replace(
        known,
        lag_segments=len(missing),
        lag_bytes=sum(info.size_bytes for info in missing),
        oldest_unix_ns=min((unix_ns for unix_ns in times if unix_ns), default=0),
    )


def _acknowledged_through(held: HeldCore) -> int:
    """The highest segment number up to which nothing is left to be acknowledged."""
    if held.oldest is not None:
        return held.oldest[0] - 1
    return max((info.segment_seq for info in held.segments), default=-1)


class LagWatch:
    """A thread that looks at what workers hold while the archiver waits for the store.

    Args:
        look: is called again and again, on that thread.
    """

    def __init__(self, look: Callable[[], None], interval_ns: int) -> None:
        self._look = look
        self._interval_seconds = interval_ns / 1e9
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="quiver-archive-lag", daemon=True)

    def start(self) -> None:
        """Begin to look."""
        self._thread.start()

    def stop(self) -> None:
        """Look no more, and wait for a look that is under way."""
        self._stopping.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stopping.wait(self._interval_seconds):
            self._look()
