"""What the archiver does beside archiving: it deletes objects that no manifest names any more, expires, and merges.

Owner: the archiver, on its one thread.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping

from quiver_actors.archive import garbage
from quiver_actors.archive.expiry import UnhurriedClock, expire_stream
from quiver_actors.archive.keys import head_key
from quiver_actors.archive.manifest import StreamRef
from quiver_actors.archive.manifest_store import ManifestWriter
from quiver_actors.archive.merging import Merging
from quiver_actors.base.clock import Clock, SystemClock
from quiver_actors.base.config import TopicSettings
from quiver_actors.base.units import SECOND_NS
from quiver_actors.errors import FormatError
from quiver_actors.store.objects.object_store import ObjectStore

logger = logging.getLogger("quiver.archive")
UPKEEP_NS = 3600 * SECOND_NS
CLOCK_AHEAD_NS = 600 * SECOND_NS
"""A clock that is further ahead of the store's is logged."""


class Upkeep:
    """
    Args:
        clock: None: that of the machine.
    """

    def __init__(self, store: ObjectStore, merging: Merging, clock: Clock | None = None) -> None:
        self._store = store
        self._merging = merging
        self._system = clock or SystemClock()
        self._clock: UnhurriedClock | None = None
        """None: the store was not asked for the time yet."""
        self._due_ns = 0
        self._garbage: frozenset[str] = frozenset()
        """Objects that no head has named for an hour: they go turn by turn."""
        self._young: frozenset[str] = frozenset()
        """Objects that no head named any more at the last look."""

    def advance(self, writer: ManifestWriter, settings: Mapping[str, TopicSettings]) -> None:
        """Do what is due. Raises ArchiveError: the next call goes on."""
        now_ns = time.monotonic_ns()
        if turn := garbage.next_turn(writer.head.garbage, self._garbage):
            writer.collect_garbage(turn)
        if not self._due_ns or now_ns >= self._due_ns:
            self._due_ns = now_ns + UPKEEP_NS
            self._clear(writer, settings)
        self._merging.advance(writer)

    def close(self) -> None:
        """Begin nothing more."""
        self._merging.close()

    def _clear(self, writer: ManifestWriter, settings: Mapping[str, TopicSettings]) -> None:
        """Have deleted what no head has named for an hour, as far as this process has seen it, and expire what is over age."""
        writer.check_owner()  # what a command has expired is garbage, too
        now_unix_ns = self._unix_ns(writer)
        for stream in writer.head.streams:
            expire_ns = settings.get(stream.topic, TopicSettings()).archive.expire_ns
            if expire_ns:
                self._expire(writer, stream, now_unix_ns - expire_ns)
        self._garbage, self._young = self._young, frozenset(writer.head.garbage)

    def _unix_ns(self, writer: ManifestWriter) -> int:
        """The time by which segments age. This machine may have started with a clock that is ahead, by which all of an archive is over age:
        so it is compared with that of the store, which has written the head since this archiver became the owner."""
        if self._clock is None:
            info, now_unix_ns = self._store.head(head_key(writer.head.node)), self._system.unix_ns()
            written_unix_ns = 0 if info is None else info.modified_unix_ns
            self._clock = UnhurriedClock(self._system, written_unix_ns)
            if written_unix_ns and now_unix_ns - written_unix_ns > CLOCK_AHEAD_NS:
                ahead = f"{(now_unix_ns - written_unix_ns) / SECOND_NS:.0f}"
                logger.warning("quiver.archive.clock_ahead seconds=%s store=%s", ahead, self._store.url)
        return self._clock.unix_ns()

    def _expire(self, writer: ManifestWriter, stream: StreamRef, before_unix_ns: int) -> None:
        try:
            expire_stream(self._store, writer, stream, before_unix_ns)
        except FormatError as error:
            # A part of its manifest is damaged, which whoever reads it is told; the other streams expire all the same.
            logger.warning("quiver.archive.not_expired topic=%s core=%d error=%s", stream.topic, stream.core, error)
