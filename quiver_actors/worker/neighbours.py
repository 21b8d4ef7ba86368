"""What the workers of a node say to one another of the topics that may have only a part of the cap: a row a topic in each one's region.

Owner: the loop thread. A worker may have hundreds of such topics, most of them idle: beside the rows each worker has one that changes with
any of them, and only when it has changed the rows are read again.
"""

from __future__ import annotations

from collections.abc import Iterator

from quiver_actors.metrics.figures import RowKind, ShareFigure, SharesFigure
from quiver_actors.shm.counters import CountersPage, RegionWriter
from quiver_actors.shm.live_row import LiveRow, read_rows
from quiver_actors.shm.words import WEAKLY_ORDERED, fence
from quiver_actors.supervisor.coordinator import RESPONSIVE_NS
from quiver_actors.supervisor.figures import SUPERVISOR_REGION
from quiver_actors.units import MILLISECOND_NS

_LABEL = "all"
_MISSING_RETRY_NS = 100 * MILLISECOND_NS
"""When a row is looked for again that was not there: that is a walk through a whole region."""
_WORDS = len(ShareFigure)


class Neighbour:
    """Another worker. While it says nothing, what it said last counts.

    Attributes:
        answers: it has looked at its own topics of late.
    """

    def __init__(self, page: CountersPage, region: int) -> None:
        self.region = region
        self.answers = False
        self._page = page
        self._row = LiveRow(page, region, RowKind.SHARES, _LABEL)
        self._heard = 0
        self._look_at_ns = 0
        self._said: dict[str, list[int]] = {}
        self._rows: dict[str, LiveRow] = {}
        """Of topics that were asked for by name."""

    def said(self, topic: str, figure: ShareFigure) -> int:
        """Of a topic, when it was heard last; 0 for one that it never spoke of."""
        words = self._said.get(topic)
        return words[figure] if words else 0

    def oldest(self, topic: str) -> tuple[int, int]:
        """(class, ingestion time) of what goes first."""
        return self.said(topic, ShareFigure.EVICTABLE_CLASS), self.said(topic, ShareFigure.EVICTABLE_OLDEST_UNIX_NS)

    def ask(self, topic: str) -> None:
        """Read what it says of one topic at this moment."""
        row = self._rows.get(topic)
        if row is None:
            row = self._rows[topic] = LiveRow(self._page, self.region, RowKind.SHARE, topic)
        self._hear(topic, row.load_all())

    def listen(self, now_ns: int) -> set[str]:
        """The topics of which it has something new to say, or none of whose words count as they did."""
        if now_ns < self._look_at_ns:
            return set()
        change = self._row.load(SharesFigure.CHANGE)
        if not change:
            self._look_at_ns = now_ns + _MISSING_RETRY_NS
        beat_ns = self._row.load(SharesFigure.BEAT_NS)
        answered, self.answers = self.answers, now_ns - beat_ns < RESPONSIVE_NS
        if change and change != self._heard:
            self._heard = change
            if WEAKLY_ORDERED:
                fence()
            rows = read_rows(self._page, self.region, RowKind.SHARE, _WORDS)
            changed = {topic for topic, words in rows.items() if words != self._said.get(topic)}
            for topic in changed:
                self._hear(topic, rows[topic])
        else:
            changed = set()
        return changed if answered == self.answers else set(self._said)

    def _hear(self, topic: str, words: list[int]) -> None:
        if words[ShareFigure.BEAT_NS]:
            self._said[topic] = words[:_WORDS]

    def forget(self, topic: str) -> None:
        self._said.pop(topic, None)
        self._rows.pop(topic, None)


class Neighbours:
    """All other workers, and what they are told of this one."""

    def __init__(self, page: CountersPage, region: RegionWriter) -> None:
        """
        Args:
            region: of this worker.

        Raises:
            ShmError: there is no row left in it.
        """
        self._own = region.row(RowKind.SHARES, _LABEL)
        others = [each for each in range(page.regions) if each not in (SUPERVISOR_REGION, region.region)]
        self._others = [Neighbour(page, other) for other in others]

    def __iter__(self) -> Iterator[Neighbour]:
        return iter(self._others)

    def tell(self, now_ns: int) -> None:
        """A row of this worker's has changed."""
        if WEAKLY_ORDERED:
            fence()
        # Never the same twice, also not after a restart.
        self._own.set(SharesFigure.CHANGE, max(now_ns, self._own.get(SharesFigure.CHANGE) + 1))

    def beat(self, now_ns: int) -> None:
        """This worker has looked at all of its topics that there is something to do for."""
        self._own.set(SharesFigure.BEAT_NS, now_ns)

    def listen(self, now_ns: int) -> set[str]:
        """The topics that have to be looked at again."""
        heard: set[str] = set()
        for other in self._others:
            heard |= other.listen(now_ns)
        return heard

    def forget(self, topic: str) -> None:
        """Nobody here has that topic any more, or it has no limit."""
        for other in self._others:
            other.forget(topic)
