"""What workers hear of one another about topics with a limit, on a real counters page."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from quiver_actors.metrics.figures import RowKind, ShareFigure
from quiver_actors.shm.counters import CountersPage
from quiver_actors.shm.live_row import read_rows
from quiver_actors.shm.names import new_name
from quiver_actors.supervisor.coordinator import RESPONSIVE_NS
from quiver_actors.supervisor.figures import region_of
from quiver_actors.worker.neighbours import Neighbours

START_NS = 10**9


@pytest.fixture
def page() -> Iterator[CountersPage]:
    page = CountersPage.create(new_name(), region_of(2), 16)
    yield page
    page.unlink()
    page.close()


class Speaker:
    """A worker that says what it has of some topics."""

    def __init__(self, page: CountersPage, worker: int) -> None:
        self._region = page.writer(region_of(worker))
        self.neighbours = Neighbours(page, self._region)

    def say(self, topic: str, used: int, now_ns: int) -> None:
        row = self._region.row(RowKind.SHARE, topic)
        row.set(ShareFigure.USED_BYTES, used)
        row.set(ShareFigure.BEAT_NS, now_ns)
        self.neighbours.tell(now_ns)


def test_only_topics_of_which_there_is_news_are_heard_of(page: CountersPage) -> None:
    speaker, listener = Speaker(page, 0), Speaker(page, 1).neighbours
    (other,) = listener
    assert listener.listen(START_NS) == set()
    for topic, used in (("a", 10), ("b", 20)):
        speaker.say(topic, used, START_NS)
    speaker.neighbours.beat(START_NS)
    later_ns = 2 * START_NS
    assert listener.listen(later_ns) == {"a", "b"}
    assert listener.listen(later_ns) == set()
    speaker.say("b", 21, later_ns)
    assert listener.listen(later_ns) == {"b"}
    assert [other.said(topic, ShareFigure.USED_BYTES) for topic in ("a", "b", "c")] == [10, 21, 0]


def test_one_that_stops_answering_or_does_so_again_is_news_of_all_that_it_has_said(page: CountersPage) -> None:
    speaker, listener = Speaker(page, 0), Speaker(page, 1).neighbours
    (other,) = listener
    speaker.say("a", 10, START_NS)
    speaker.neighbours.beat(START_NS)
    listener.listen(START_NS)
    assert other.answers
    silent_ns = START_NS + RESPONSIVE_NS
    assert listener.listen(silent_ns) == {"a"}
    assert not other.answers
    speaker.neighbours.beat(silent_ns)
    assert listener.listen(silent_ns) == {"a"}
    assert other.answers


def test_one_that_begins_anew_counts_with_what_it_said_before(page: CountersPage) -> None:
    speaker, listener = Speaker(page, 0), Speaker(page, 1).neighbours
    (other,) = listener
    speaker.say("a", 10, START_NS)
    listener.listen(START_NS)
    page.writer(region_of(0)).begin(1234, 0)
    assert listener.listen(2 * START_NS) == set()
    assert other.said("a", ShareFigure.USED_BYTES) == 10
    Speaker(page, 0).say("a", 30, 3 * START_NS)
    assert listener.listen(4 * START_NS) == {"a"}
    assert other.said("a", ShareFigure.USED_BYTES) == 30
    listener.forget("a")
    assert other.said("a", ShareFigure.USED_BYTES) == 0


def test_rows_of_one_kind_are_read_by_their_labels(page: CountersPage) -> None:
    region = page.writer(region_of(0))
    for number, topic in enumerate(["a", "b", "c"]):
        region.row(RowKind.SHARE, topic).set(0, number + 1)
        region.row(RowKind.ENGINE, topic).set(0, 77)
    region.drop(region.row(RowKind.SHARE, "b"))
    assert read_rows(page, region_of(0), RowKind.SHARE, 2) == {"a": [1, 0], "c": [3, 0]}
    assert read_rows(page, region_of(1), RowKind.SHARE, 2) == {}
