"""What the supervisor does for the worker of a node, for the worker of a store: the list of topics, and the size cap.

Owner: the store's clock thread, and whoever changes topics; each part has a lock of its own, so that no push waits for them.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable

import msgspec

from quiver_actors.base.config.reading import Resolved
from quiver_actors.base.locks import new_lock
from quiver_actors.base.metrics.figures import FIGURES_VERSION
from quiver_actors.base.protocol.topic_requests import SUBJECT, Change, Create, Request, TopicReply, reply_in
from quiver_actors.errors import ConfigError
from quiver_actors.node.composition import rows_per_region, storage_spec
from quiver_actors.node.opened_directories import OpenedDirectories
from quiver_actors.node.topics.keeper import TopicKeeper
from quiver_actors.shm.counters import CountersPage, RegionWriter
from quiver_actors.store.disk.protocol import Disk
from quiver_actors.supervisor.decide import Child
from quiver_actors.supervisor.figures import CHILD_ROW, SUPERVISOR_REGION, ChildFigure, NodeState, region_of
from quiver_actors.supervisor.node_storage import NodeStorage
from quiver_actors.supervisor.spec import ChildSpec, Patience
from quiver_actors.supervisor.state import ChildState

CORE = 0
"""The number of the only core."""
_NAME = f"core_{CORE}"


class Steward:
    """Keeps the topics and the size cap of one store."""

    def __init__(
        self,
        disk: Disk,
        data_dir: str,
        resolved: Resolved,
        opened: OpenedDirectories,
        applied: Callable[[], int | None],
    ) -> None:
        """Read the list of topics, or begin one, and measure the directory if there is a cap. No worker runs yet.

        Args:
            disk: the data directory `data_dir`.
            applied: the version of the list that the worker has; None: there is no worker now.

        Raises:
            FormatError, ConfigError, DiskError: as `TopicKeeper`; ConfigError: a topic's durability is `archived`.
        """
        self._topics_lock = new_lock()
        self._topics_due_ns: int | None = 0
        self.keeper = TopicKeeper(
            disk,
            data_dir,
            resolved,
            resolve=lambda: resolved,
            applied=lambda: {_NAME: applied()},
            forget=opened.forget,
        )
        for topic, entry in self.keeper.catalogue.topics.items():
            refuse_archived_durability(topic, entry.settings.durability)
        self.page = CountersPage.private(2, rows_per_region(1, len(self.keeper.catalogue.topics)), FIGURES_VERSION)
        own = self._own = self.page.writer(SUPERVISOR_REGION)
        own.begin(os.getpid(), time.time_ns())
        self._row = own.row(CHILD_ROW, _NAME)
        self._child = Child(
            ChildSpec(name=_NAME, index=CORE, cpu=None, run=lambda _: 0), Patience(), time.monotonic_ns()
        )
        self._storage = NodeStorage(storage_spec(self.keeper, data_dir, 1), [self._child], self.page, own)
        self._region = self.page.writer(region_of(CORE))

    def begin_worker(self) -> RegionWriter:
        """Return the region of the page for a worker that begins its life."""
        self._region.begin(os.getpid(), time.time_ns())
        self._child.state = ChildState.STARTING
        self._row.set(ChildFigure.PID, os.getpid())
        self._row.set(ChildFigure.STARTED_UNIX_NS, time.time_ns())
        return self._region

    def worker_is_ready(self) -> None:
        """Show that the worker serves."""
        self._child.state = ChildState.READY
        self._row.set(ChildFigure.STATE, self._child.state)
        self._own.set_state(int(NodeState.READY))

    def worker_has_ended(self) -> None:
        """Show that the worker is gone, and count the restart that follows."""
        self._child.state = ChildState.BACKOFF
        self._child.restarts += 1
        self._row.set(ChildFigure.STATE, self._child.state)
        self._row.set(ChildFigure.PID, 0)
        self._row.set(ChildFigure.RESTARTS, self._child.restarts)

    def hurry(self) -> None:
        """The worker has something new to say of the disk."""
        self._storage.wake()

    def topics(self) -> list[str]:
        """The names of the topics."""
        with self._topics_lock:
            return list(self.keeper.catalogue.topics)

    def change_topics(self, request: Request) -> TopicReply:
        """Carry out a request about topics. Raises QuiverError: it is refused."""
        if isinstance(request, Create | Change):
            refuse_archived_durability(request.topic, request.values.get("durability"))
        with self._topics_lock:
            body = self.keeper.answer(SUBJECT, msgspec.msgpack.encode(request), os.geteuid())
            self._topics_due_ns = 0
        return reply_in(body)

    def step(self, now_ns: int) -> int:
        """Do what is due; blocking, without the store's lock. Returns when to be called again."""
        self._own.heartbeat(now_ns)
        self._storage.turn([self._child])
        with self._topics_lock:
            if self._topics_due_ns is not None and now_ns >= self._topics_due_ns:
                self._topics_due_ns = self.keeper.step(now_ns)
            due_ns = self._topics_due_ns
        return min(at for at in (due_ns, self._storage.next_deadline_ns(), 1 << 62) if at is not None)

    def is_put_aside(self, topic: str) -> bool:
        """Whether the directory of a deleted topic is out of the way."""
        return topic not in [deletion.topic for deletion in self.keeper.catalogue.deletions]


def refuse_archived_durability(topic: str, durability: object) -> None:
    """Raise ConfigError if pushes into the topic are to wait for an archive: a store has no archiver, so they would never return."""
    if durability == "archived":
        raise ConfigError(
            f"topic {topic!r} has durability 'archived', and a store in this process has no archiver: run a node (`quiver up`), or give "
            "the topic the durability 'wal'"
        )
