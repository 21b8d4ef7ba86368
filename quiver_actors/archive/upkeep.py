"""Looks after an archive once an hour: expires what is over age, and deletes objects that no head has named for an hour.

Owner: the archiver, on its one thread. What another process left behind counts from when this one has seen it, so readers always have their
hour, whoever is restarted.
"""

from __future__ import annotations

import time
from collections.abc import Mapping

from quiver_actors.archive.expiry import UnhurriedClock, expire_stream
from quiver_actors.archive.manifest_store import ManifestWriter
from quiver_actors.archive.object_store import Metadata
from quiver_actors.base.clock import SystemClock
from quiver_actors.base.config import TopicSettings
from quiver_actors.base.units import SECOND_NS

INTERVAL_NS = 3600 * SECOND_NS


class Upkeep:
    """See above."""

    def __init__(self) -> None:
        self._clock = UnhurriedClock(SystemClock())
        self._due_ns = 0
        self._garbage: frozenset[str] = frozenset()
        """Objects that no head named any more at the last time."""

    def keep_up(self, store: Metadata, writer: ManifestWriter, settings: Mapping[str, TopicSettings]) -> None:
        """Do what is due, if anything is.

        Raises:
            ArchiveError: the store or the manifest did not take it; it is done again after an interval.
        """
        now_ns = time.monotonic_ns()
        if now_ns < self._due_ns:
            return
        self._due_ns = now_ns + INTERVAL_NS
        writer.collect_garbage(self._garbage)
        for stream in writer.head.streams:
            expire_ns = settings.get(stream.topic, TopicSettings()).archive.expire_ns
            if expire_ns:
                expire_stream(store, writer, stream, self._clock.unix_ns() - expire_ns)
        self._garbage = frozenset(writer.head.garbage)
