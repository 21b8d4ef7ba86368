"""All limits of a node's disk: the cap, and the limits of topics that may have only a part of it. Each has a `Coordination` of its own.

Owner: the supervisor's loop. Which topics have a limit, and which, the children say: each has a row for each of them, and a word that
changes with any of these rows. So topics that nothing happens to cost nothing, however many there are.

A topic is kept to its limit from the moment when one child has its row until no child has one. A child without a process counts with
the rows that it had last.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence

import msgspec

from ..shm.counters import CountersPage, RegionWriter
from ..shm.errors import ShmError
from ..shm.live_row import LiveRow, read_rows
from ..shm.words import WEAKLY_ORDERED, fence
from .decide import Child
from .figures import (
    NODE_STORAGE_LABEL,
    NODE_STORAGE_ROW,
    QUOTA_ROW,
    STORAGE_ROW,
    TOPIC_STORAGE_ROW,
    NodeStorageFigure,
    QuotaFigure,
    StorageFigure,
    region_of,
)
from .log import log_event
from .storage import Coordination, StorageSpec

_Rows = Mapping[str, Sequence[int]]


class NodeStorage:
    """Carries reports, quotas and claims of all limits. Made before the first fork."""

    def __init__(self, spec: StorageSpec, children: Sequence[Child], page: CountersPage, own: RegionWriter) -> None:
        self._spec = spec
        self._children = children
        self._page = page
        self._own = own
        self._node = Coordination(spec, children, page, own)
        self._reports = [_Reports(child, page) for child in children]
        self._topics: dict[str, Coordination] = {}
        self._limits: dict[str, int] = {}
        """Limit of each topic that has one, in bytes."""

    def follow_cap(self) -> None:
        """Read the cap anew, which may have changed."""
        self._node.follow_cap()

    def wake(self) -> None:
        """A child has something new to say: look in this turn."""
        self._node.wake()

    def next_deadline_ns(self) -> int | None:
        """Return the monotonic time of the next round; None if nothing is due."""
        due = (each.next_deadline_ns() for each in (self._node, *self._topics.values()))
        return min((at for at in due if at is not None), default=None)

    def turn(self, children: Sequence[Child]) -> None:
        """Look at the words and write what follows from them, where it is time."""
        self._node.turn(children)
        news = {topic for reports in self._reports for topic in reports.look()}
        if news or self._limits.keys() != self._topics.keys():
            self._follow(news)
        turned = sum(each.turn(children) for each in self._topics.values())
        if turned and WEAKLY_ORDERED:
            fence()
        if turned:
            for child in children:
                self._own.row(QUOTA_ROW, child.spec.name).add(QuotaFigure.CHANGE, 1)

    def _follow(self, news: set[str]) -> None:
        """Begin and end topics, and wake those that there is something new of."""
        self._limits = {}
        for reports in self._reports:
            for topic, words in reports.rows.items():
                self._limits[topic] = max(self._limits.get(topic, 0), words[StorageFigure.LIMIT_BYTES])
        for topic in self._topics.keys() - self._limits.keys():
            self._topics.pop(topic).end()
        for topic in sorted(self._limits.keys() - self._topics.keys()):
            self._begin(topic)
        for topic in news & self._topics.keys():
            self._topics[topic].follow_cap()
            self._topics[topic].wake()

    def _begin(self, topic: str) -> None:
        spec = msgspec.structs.replace(
            self._spec,
            cap_bytes=lambda: self._limits[topic],
            directories=lambda index: self._spec.topic_directories(index, topic),
        )
        node = self._own.row(NODE_STORAGE_ROW, NODE_STORAGE_LABEL)
        try:
            self._topics[topic] = Coordination(spec, self._children, self._page, self._own, topic)
        except ShmError as error:
            if not node.get(NodeStorageFigure.HAS_UNKEPT_TOPICS):
                log_event("topic.share_not_kept", {"topic": topic, "reason": str(error)}, logging.WARNING)
            node.set(NodeStorageFigure.HAS_UNKEPT_TOPICS, 1)
        except OSError:
            # No descriptor is left, or the disk does not answer: tried again in the next turn.
            pass


class _Reports:
    """The rows of one child, one for each topic with a limit.

    Attributes:
        rows: as they were read last, by topic.
    """

    def __init__(self, child: Child, page: CountersPage) -> None:
        self.rows: _Rows = {}
        self._child = child
        self._page = page
        self._region = region_of(child.spec.index)
        self._row = LiveRow(page, self._region, STORAGE_ROW, child.spec.name)
        self._heard = (False, 0)

    def look(self) -> set[str]:
        """Read the rows again if one of them has changed, or the child has begun or ended; return the topics that this concerns."""
        is_there = self._child.has_process and bool(self._row.load(StorageFigure.REPORTED))
        heard = (is_there, self._row.load(StorageFigure.CHANGE))
        if heard == self._heard:
            return set()
        (was_there, _), self._heard, before = self._heard, heard, self.rows
        if is_there:
            if WEAKLY_ORDERED:
                fence()
            rows = read_rows(self._page, self._region, TOPIC_STORAGE_ROW, len(StorageFigure))
            self.rows = {topic: words for topic, words in rows.items() if words[StorageFigure.REPORTED]}
        topics = {*before, *self.rows}
        return {topic for topic in topics if is_there != was_there or before.get(topic) != self.rows.get(topic)}
