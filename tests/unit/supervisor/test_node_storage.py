"""The limits of topics in the supervisor, on a real counters page and real directories; its children exist in name only."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from quiver_actors.shm.counters import CountersPage, RowWriter
from quiver_actors.shm.live_row import LiveRow
from quiver_actors.shm.names import new_name
from quiver_actors.supervisor.decide import Child, Supervision
from quiver_actors.supervisor.figures import (
    NODE_STORAGE_LABEL,
    NODE_STORAGE_ROW,
    QUOTA_ROW,
    STORAGE_ROW,
    TOPIC_QUOTA_ROW,
    TOPIC_STORAGE_ROW,
    TOPIC_SUM_ROW,
    NodeStorageFigure,
    QuotaFigure,
    StorageFigure,
    region_of,
)
from quiver_actors.supervisor.node_storage import NodeStorage
from quiver_actors.supervisor.spec import ChildSpec, Patience
from quiver_actors.supervisor.state import ChildState
from quiver_actors.supervisor.storage import StorageSpec
from tests.unit.supervisor.test_storage import put

MIB = 1 << 20
LIMIT = 16 * MIB


class Node:
    """Two children that live, and the directories of their topics."""

    def __init__(self, root: Path, page: CountersPage) -> None:
        self.root, self.page = root, page
        self._changes = itertools.count(1)
        specs = [ChildSpec(name=f"core_{n}", index=n, cpu=None, run=lambda context: 0) for n in range(2)]
        self.children: list[Child] = Supervision(specs, Patience(), 0).children
        spec = StorageSpec(
            root=str(root),
            cap_bytes=lambda: 1024 * MIB,
            directories=lambda core: [str(path) for path in root.glob(f"*/core_{core}")],
            topic_directories=lambda core, topic: [str(root / topic / f"core_{core}")],
        )
        self.storage = NodeStorage(spec, self.children, page, page.writer(0))
        self.regions = [page.writer(region_of(core)) for core in range(2)]
        for core in range(2):
            self.start(core)

    def start(self, core: int) -> None:
        """It lives, and has said nothing of any topic yet."""
        self.children[core].state = ChildState.READY
        self.regions[core].begin(1000 + next(self._changes), 0)
        self._row(core).set(StorageFigure.BEAT_NS, time.monotonic_ns())
        self._row(core).set(StorageFigure.REPORTED, 1)

    def _row(self, core: int) -> RowWriter:
        return self.regions[core].row(STORAGE_ROW, f"core_{core}")

    def say(self, core: int, topic: str, used: int, limit: int = LIMIT, **more: int) -> None:
        """What a worker says of a topic: it lives within the quota that stands."""
        row = self.regions[core].row(TOPIC_STORAGE_ROW, topic)
        words = {
            StorageFigure.LIMIT_BYTES: limit,
            StorageFigure.USED_BYTES: used,
            StorageFigure.STEP_BYTES: MIB,
            StorageFigure.QUOTA_SEEN_BYTES: self.quota_bytes(core, topic),
            StorageFigure.REPORTED: 1,
        }
        for figure, value in (words | {StorageFigure[name.upper()]: value for name, value in more.items()}).items():
            row.set(figure, value)
        self.tell(core)

    def tell(self, core: int) -> None:
        self._row(core).set(StorageFigure.CHANGE, next(self._changes))

    def quota_bytes(self, core: int, topic: str) -> int:
        return LiveRow(self.page, 0, TOPIC_QUOTA_ROW, f"core_{core}/{topic}").load(QuotaFigure.QUOTA_BYTES)

    def limit(self, topic: str) -> int:
        return LiveRow(self.page, 0, TOPIC_SUM_ROW, topic).load(NodeStorageFigure.CAP_BYTES)

    def heard(self, core: int) -> int:
        return LiveRow(self.page, 0, QUOTA_ROW, f"core_{core}").load(QuotaFigure.CHANGE)

    def turn(self, times: int = 1) -> None:
        for _ in range(times):
            self.storage.turn(self.children)


@pytest.fixture
def page() -> Iterator[CountersPage]:
    page = CountersPage.create(new_name(), 3, 16)
    yield page
    page.unlink()
    page.close()


@pytest.fixture
def node(tmp_path: Path, page: CountersPage) -> Node:
    return Node(tmp_path, page)


def test_a_topic_gets_grants_as_soon_as_one_child_names_it_and_loses_them_when_none_does(node: Node) -> None:
    node.turn()
    before = node.heard(1)
    node.say(1, "clicks", 0)
    node.turn()
    assert node.limit("clicks") == LIMIT
    assert node.quota_bytes(1, "clicks") >= 2 * MIB
    assert node.quota_bytes(0, "clicks") + node.quota_bytes(1, "clicks") <= LIMIT
    assert node.heard(1) != before, "the child is told to look"
    node.say(0, "clicks", 0)
    node.regions[1].drop(node.regions[1].row(TOPIC_STORAGE_ROW, "clicks"))
    node.tell(1)
    node.turn()
    assert node.limit("clicks") == LIMIT, "another child has it"
    node.regions[0].drop(node.regions[0].row(TOPIC_STORAGE_ROW, "clicks"))
    node.tell(0)
    node.turn()
    assert (node.limit("clicks"), node.quota_bytes(0, "clicks")) == (0, 0)


def test_a_limit_that_changes_changes_the_quotas(node: Node) -> None:
    for limit in (LIMIT, 2 * LIMIT, LIMIT // 2):
        for _ in range(6):
            for core in range(2):
                node.say(core, "clicks", 2 * MIB, limit, wanted_bytes=core * limit // 2, waiting_since_ns=core)
            node.turn()
        assert node.limit("clicks") == limit
        assert node.quota_bytes(1, "clicks") >= 2 * MIB + limit // 2
        assert node.quota_bytes(0, "clicks") + node.quota_bytes(1, "clicks") <= limit


def test_a_child_that_is_away_counts_with_what_its_directory_of_the_topic_holds(node: Node) -> None:
    for topic in ("clicks", "other"):
        (node.root / topic / "core_1").mkdir(parents=True)
        put(node.root / topic / "core_1" / "segment", 10 * MIB)
    node.children[1].state = ChildState.BACKOFF

    def ask(wanted: int, others_bytes: int | None = None) -> bool:
        """Whether the other child is given so much within some turns."""
        for number in range(5):
            if others_bytes is not None:
                node.say(1, "clicks", others_bytes)
            # Something new each time, so that the topic is looked at.
            node.say(0, "clicks", 0, wanted_bytes=wanted, waiting_since_ns=1, evictable_bytes=number)
            node.turn()
        return node.quota_bytes(0, "clicks") >= wanted

    assert ask(5 * MIB)
    assert not ask(7 * MIB)
    node.start(1)  # with nothing said of the topic: it is still opening it
    assert not ask(7 * MIB)
    assert ask(14 * MIB, others_bytes=MIB), "then with what it says"


def test_only_topics_of_which_there_is_news_are_looked_at(node: Node) -> None:
    for topic in ("a", "b"):
        node.say(0, topic, MIB)
    node.turn(2)
    assert node.storage.next_deadline_ns() is not None, "that of the node's cap"
    before = [node.quota_bytes(0, topic) for topic in ("a", "b")]
    for topic in ("a", "b"):
        node.regions[0].row(TOPIC_STORAGE_ROW, topic).set(StorageFigure.WANTED_BYTES, 12 * MIB)
    node.turn(2)
    assert [node.quota_bytes(0, topic) for topic in ("a", "b")] == before
    node.say(0, "b", MIB, wanted_bytes=12 * MIB)
    node.turn(2)
    assert node.quota_bytes(0, "b") > before[1]


def test_where_no_row_is_left_for_a_topic_the_children_are_told(tmp_path: Path) -> None:
    page = CountersPage.create(new_name(), 3, 5)
    try:
        node = Node(tmp_path, page)
        for topic in ("a", "b"):
            node.say(0, topic, 0)
        node.turn(2)
        assert node.limit("a") == 0
        row = LiveRow(page, 0, NODE_STORAGE_ROW, NODE_STORAGE_LABEL)
        assert row.load(NodeStorageFigure.HAS_UNKEPT_TOPICS) == 1
    finally:
        page.unlink()
        page.close()
