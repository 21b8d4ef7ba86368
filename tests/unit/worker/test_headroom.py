"""How long a hot core waits for what idle cores do not use, in simulated time: the worker's hosts and engines and its side of the grants,
the supervisor's side, and the counters page between them are the real ones. They look at the page as often as they do in a node."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from quiver_actors.shm.counters import CountersPage
from quiver_actors.shm.names import new_name
from quiver_actors.supervisor import storage as supervisor_storage
from quiver_actors.supervisor.decide import Child, Supervision
from quiver_actors.supervisor.figures import region_of
from quiver_actors.supervisor.spec import ChildSpec, Patience
from quiver_actors.supervisor.state import ChildState
from quiver_actors.supervisor.storage import Coordination, StorageSpec
from quiver_actors.units import KIB, MIB, MILLISECOND_NS
from quiver_actors.worker.agenda import Agenda
from quiver_actors.worker.storage import CALM_INTERVAL_NS, StorageShare
from tests.support.engine_driver import ManualClock, topic_settings
from tests.support.host_bench import HostBench, clocks_of

CORES = 4
HOT = 1
CAP = 32 * MIB
PROMISED_NS = 100 * MILLISECOND_NS
SETTINGS = topic_settings(segment_target_size_bytes=64 * KIB, segment_compaction="off")


class Node:
    """One hot worker and three idle ones, and the supervisor's loop."""

    def __init__(self, root: Path, page: CountersPage, clock: ManualClock) -> None:
        self.clock = clock
        self.benches = [HostBench(clock, SETTINGS) for _ in range(CORES)]
        specs = [ChildSpec(name=f"core_{n}", index=n, cpu=None, run=lambda context: 0) for n in range(CORES)]
        self.children: list[Child] = Supervision(specs, Patience(), 0).children
        for child in self.children:
            child.state = ChildState.READY
        spec = StorageSpec(root=str(root), cap_bytes=lambda: CAP, directories=lambda n: [str(root / f"core_{n}")])
        self.coordination = Coordination(spec, self.children, page, page.writer(0))
        self.shares = [self._share(n, page) for n in range(CORES)]

    def _share(self, core: int, page: CountersPage) -> StorageShare:
        bench = self.benches[core]
        hosts = {"default": bench.host}
        share = StorageShare(
            page, page.writer(region_of(core)), f"core_{core}", hosts, Agenda(), self.coordination.wake
        )
        bench.driver.engine.share_room(lambda size: share.admits_for(bench.driver.engine, size))
        return share

    def pass_time(self, milliseconds: int) -> None:
        for _ in range(milliseconds):
            self.clock.advance(MILLISECOND_NS)
            for bench, share in zip(self.benches, self.shares, strict=True):
                bench.settle()
                share.turn(self.clock.now_ns)
            self.coordination.turn(self.children)

    def used(self, core: int) -> int:
        return self.benches[core].driver.engine.disk_bytes


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Node]:
    clock = ManualClock()
    clocks_of(clock, monkeypatch)
    monkeypatch.setattr(supervisor_storage, "time", SimpleNamespace(monotonic_ns=clock.monotonic_ns))
    page = CountersPage.create(new_name(), region_of(CORES), 16)
    node = Node(tmp_path, page, clock)
    yield node
    for bench in node.benches:
        bench.close()
    page.unlink()
    page.close()


@pytest.mark.parametrize("phase_ms", [0, CALM_INTERVAL_NS // MILLISECOND_NS // 2])
def test_a_hot_core_waits_a_tenth_of_a_second_at_most_while_idle_ones_have_headroom(node: Node, phase_ms: int) -> None:
    node.pass_time(300 + phase_ms)  # everybody has its part, and looks at different times
    ingest = node.benches[HOT].host.ingest
    waits, number = [0], 0
    while sum(node.used(core) for core in range(CORES)) < CAP - MIB:
        assert number < 2000
        if not ingest.waiting_count:
            number += 1
            node.benches[HOT].push(number, rows=1500)
        since_ns = ingest.waiting_since_ns
        node.pass_time(1)
        if since_ns:
            waits.append(node.clock.now_ns - since_ns)
        assert waits[-1] <= PROMISED_NS, f"push {number}, {node.used(HOT)} bytes used"
        assert sum(node.used(core) for core in range(CORES)) <= CAP
    assert node.used(HOT) > 0.85 * CAP
