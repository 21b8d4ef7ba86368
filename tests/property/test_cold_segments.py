"""Whatever order pushes, seals, moves to a cold disk, its absences, restarts, power losses and a cap come in: a consumer gets each bundle
once and in order, or is told that it was evicted."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from quiver_actors.base.config import RetentionSettings, TierSettings
from quiver_actors.base.units import SECOND_NS
from tests.disks.below import ColdDisksBelow
from tests.disks.crashes import CrashMode
from tests.disks.simulated import SimDisk
from tests.support.engine_driver import EngineDriver, topic_settings

READER, OWNER = "s", "owner"
STEPS = st.lists(
    st.sampled_from(
        ["push", "push", "seal", "seal", "time", "consume", "take away", "bring back", "restart", "power loss"]
    ),
    max_size=40,
)


class Run:
    """One engine, what was pushed to it, and what its consumer has got."""

    def __init__(self, keep_hot: int, cap_bytes: int, policy: str) -> None:
        tier = TierSettings(cold_dir="cold", keep_hot_segments=keep_hot, cold_cap_bytes=cap_bytes)
        disk = SimDisk()
        self.cold_disks = ColdDisksBelow(disk)
        retention = RetentionSettings(size_cap_policy=policy)
        self.driver = EngineDriver(
            disk,
            topic_settings(tier=tier, retention=retention, segment_compaction="off", segment_statistics="off"),
            cold_disks=self.cold_disks,
        )
        self.driver.engine.registrations.register(READER, "earliest")
        self.driver.flush_progress()
        self.pushed = 0
        self.got: list[int] = []

    def push(self) -> None:
        self.driver.push_numbered(self.pushed, 2)
        self.driver.settle()
        self.pushed += 2

    def seal(self) -> None:
        self.driver.seal()

    def time(self) -> None:
        self.driver.run_for(3 * SECOND_NS)

    def consume(self) -> None:
        """Up to three bundles, acknowledged durably; what lies on a disk that is away is given back."""
        for grant in self.driver.claim(READER, OWNER, 3):
            is_cold = self.driver.engine.storage.is_cold(grant.segment_seq)
            if is_cold and self.cold_disks.is_away:
                break
            reader = self.driver.read_claimed(grant.segment_seq)
            self.got += [reader.bundle(index)[0].column(0)[0].as_py() for index in grant.indexes]
            assert self.driver.resolve(READER, OWNER, grant.segment_seq, "ack", list(grant.indexes)) == []
        self.driver.engine.claims.release(OWNER)
        self.driver.flush_progress()

    def take_away(self) -> None:
        self.cold_disks.is_away = True

    def bring_back(self) -> None:
        self.cold_disks.is_away = False

    def restart(self) -> None:
        self._go_on(CrashMode.KEEP)

    def power_loss(self) -> None:
        self._go_on(CrashMode.DROP)

    def _go_on(self, mode: CrashMode) -> None:
        disk = self.driver.disk
        assert isinstance(disk, SimDisk)
        left = disk.crash(mode)
        is_away, self.cold_disks = self.cold_disks.is_away, ColdDisksBelow(left)
        self.cold_disks.is_away = is_away
        self.driver.disk, self.driver.cold_disks = left, self.cold_disks
        self.driver.reopen()
        self.driver.settle()

    def finish(self) -> set[tuple[int, int]]:
        """Get all that is left. Returns the bundles that the consumer was told to be lost."""
        self.bring_back()
        self.driver.seal()
        lost = set[tuple[int, int]]()
        for _ in range(1_000):
            self.driver.run_for(15 * SECOND_NS)
            before = len(self.got)
            self.consume()
            for notice in self.driver.take_gaps(READER, OWNER):
                assert notice.reason == "evicted"
                lost.update((notice.segment_seq, index) for index in range(notice.bundle_count))
                self.driver.engine.claims.ack_gap(READER, notice.notice)
            if len(self.got) == before and not self.driver.engine.claims.has_news(READER):
                return lost
        raise AssertionError("there is no end to it")


@settings(max_examples=20, deadline=None)
@given(STEPS, st.integers(0, 2), st.sampled_from([0, 3_000]), st.sampled_from(["backpressure", "drop_oldest"]))
def test_each_bundle_comes_once_and_in_order(steps: list[str], keep_hot: int, cap_bytes: int, policy: str) -> None:
    run = Run(keep_hot, cap_bytes, policy)
    for step in steps:
        getattr(run, step.replace(" ", "_"))()
    lost = run.finish()
    assert run.got == sorted(set(run.got)), "twice, or out of order"
    missing = set(range(run.pushed)) - set(run.got)
    assert len(missing) == len(lost)
    assert not missing or (cap_bytes and policy == "drop_oldest")
