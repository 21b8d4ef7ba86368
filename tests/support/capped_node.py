"""Workers that share a size cap, in simulated time: their hosts and engines, their side of the quotas, the supervisor's side, and the
counters page between them are the real ones; disks are simulated. Everybody looks at the page as often as in a node."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest

from quiver_actors.base.config import TopicSettings
from quiver_actors.base.units import MILLISECOND_NS
from quiver_actors.node.worker.storage import StorageShare
from quiver_actors.shm.counters import CountersPage
from quiver_actors.shm.names import new_name
from quiver_actors.supervisor import storage as supervisor_storage
from quiver_actors.supervisor.decide import Child, Supervision
from quiver_actors.supervisor.figures import region_of
from quiver_actors.supervisor.node_storage import NodeStorage
from quiver_actors.supervisor.spec import ChildSpec, Patience
from quiver_actors.supervisor.state import ChildState
from quiver_actors.supervisor.storage import StorageSpec
from tests.support.engine_driver import ManualClock
from tests.support.host_bench import HostBench, clocks_of


class CappedNode:
    """One topic on each of some workers, and the supervisor's loop.

    Attributes:
        stopped: workers that do nothing, as one that was stopped.
        over: the most that was seen beyond the topic's part of the cap at any millisecond, in bytes.
    """

    def __init__(
        self, root: Path, page: CountersPage, clock: ManualClock, settings: TopicSettings, cap_bytes: int, cores: int
    ) -> None:
        self.clock = clock
        self.limit_bytes = int(settings.retention.cap_share * cap_bytes)
        self.benches = [HostBench(clock, settings) for _ in range(cores)]
        self.stopped: set[int] = set()
        self.over = 0
        specs = [ChildSpec(name=f"core_{n}", index=n, cpu=None, run=lambda context: 0) for n in range(cores)]
        self.children: list[Child] = Supervision(specs, Patience(), 0).children
        for child in self.children:
            child.state = ChildState.READY
        spec = StorageSpec(root=str(root), cap_bytes=lambda: cap_bytes, directories=lambda n: [str(root / f"core_{n}")])
        self.storage = NodeStorage(spec, self.children, page, page.writer(0))
        self.shares = [self._share(n, page) for n in range(cores)]

    def _share(self, core: int, page: CountersPage) -> StorageShare:
        engine, hosts = self.benches[core].driver.engine, dict.fromkeys(["default"], self.benches[core].host)
        region = page.writer(region_of(core))
        share = StorageShare(page, region, f"core_{core}", hosts, self.benches[core].run_queue, self.storage.wake)
        engine.storage.share_room(
            lambda size_bytes: share.admits_for(engine, size_bytes), lambda: share.limit_met(engine)
        )
        return share

    def pass_time(self, milliseconds: int) -> None:
        """Each worker and the supervisor get a turn a millisecond."""
        for _ in range(milliseconds):
            self.clock.advance(MILLISECOND_NS)
            for core, share in enumerate(self.shares):
                if core not in self.stopped:
                    self.benches[core].settle()
                    share.turn(self.clock.now_ns)
            self.storage.turn(self.children)
            self.over = max(self.over, sum(self.used(core) for core in range(len(self.benches))) - self.limit_bytes)

    def used(self, core: int) -> int:
        """Bytes on the disk of one worker."""
        return self.benches[core].driver.engine.storage.disk_bytes

    def push(self, core: int, number: int, rows: int) -> None:
        """A push, unless one waits already."""
        if not self.benches[core].host.ingest.waiting.count:
            self.benches[core].push(number, rows)


@contextmanager
def capped_node(
    root: Path, monkeypatch: pytest.MonkeyPatch, settings: TopicSettings, cap_bytes: int, cores: int
) -> Iterator[CappedNode]:
    clock = ManualClock()
    clocks_of(clock, monkeypatch)
    monkeypatch.setattr(supervisor_storage, "time", SimpleNamespace(monotonic_ns=clock.monotonic_ns))
    page = CountersPage.create(new_name(), region_of(cores), 16)
    node = CappedNode(root, page, clock, settings, cap_bytes, cores)
    try:
        yield node
    finally:
        for bench in node.benches:
            bench.close()
        page.unlink()
        page.close()
