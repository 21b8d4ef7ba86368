"""One engine in a world of its own: producers, subscribers, an operator, three threads, a clock and a disk, all driven by a seed.

A run is a random sequence of what a worker does with an engine. Its jobs are stepped call by call between those operations, so
that syncs, seals and writes interleave as they do in a worker. Before each call that changes the disk the run keeps a moment: a copy
of the disk as it is then. The ledger says what a crash at that moment must leave.
"""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

from quiver_actors.base.homes import STANDING_ALONE
from quiver_actors.base.model import Durability
from quiver_actors.base.units import MILLISECOND_NS, SECOND_NS
from quiver_actors.errors import EngineFailed
from quiver_actors.store.disk.interposed import Call
from quiver_actors.store.engine import Engine, EngineState
from quiver_actors.store.engine.events import Event, Failed, GapFound, Sealed
from quiver_actors.store.jobs.upkeep import COMPACTION_AGE_NS, SCRUB_AGE_NS
from quiver_actors.store.retention.choice import choose
from quiver_actors.store.subscriber.progress import progress_file_name
from quiver_actors.store.subscriber.progress_journal import JOURNAL_NAME
from quiver_actors.store.wal.uniform import UNIFORM_ENTRIES_MIN
from quiver_actors.supervisor.figures import NO_LIMIT, EvictionClass
from tests.disks.crashes import CrashMode
from tests.disks.faulty import FaultyDisk, call_site
from tests.disks.monitor import OrderMonitor
from tests.disks.simulated import SimDisk
from tests.disks.simulated_files import BLOCK_BYTES
from tests.sim.bundles import Producer, Slots, any_bundle, tiny
from tests.sim.job_threads import JobThreads
from tests.sim.keyed import HOMES, KeyedProducers, put_elsewhere
from tests.sim.ledger import NEVER, BundleId, Deletion, Fact, Ledger, PushedBundle, Subscription
from tests.sim.lone import LonePushes
from tests.sim.oracle import DIRECTORY, ManualClock, Oracle, Survey
from tests.sim.profiles import Profile
from tests.sim.recorder import Moment, Recorder, sequences_in
from tests.sim.staging import Staging
from tests.sim.subscribing import Subscribing

_UNIFORM_SHARE = 0.04


@dataclass(slots=True)
class _Ticketed:
    ticket: int
    fact: Fact


class World:
    """One engine driven by a seed. `start` and `run` do everything; `moments`, `ledger` and `oracle` are what is left.

    With a faulty disk the run ends when the engine has failed, or when a stop or start meets a fault; it then never simulates a
    crash itself and leaves the comparing to its owner.
    """

    def __init__(
        self, seed: int, profile: Profile, *, keeps_moments: bool = True, faulty: FaultyDisk | None = None
    ) -> None:
        self.name = f"{profile.name}/{seed}"
        self.profile = profile
        self.settings = profile.settings
        self.random = Random(f"{profile.name} {seed}")
        self.ledger = Ledger()
        self.oracle = Oracle(self.ledger, self.settings, HOMES if profile.keyed_share else STANDING_ALONE)
        self.clock = ManualClock()
        self.moments: list[Moment] = []
        self.calls = 0
        self.starts = 0
        self.has_faults = faulty is not None
        self.faulty = faulty or FaultyDisk(SimDisk())
        self.monitor: OrderMonitor
        self.engine: Engine
        self._keeps_moments = keeps_moments
        self._only_stages = profile.transacts and seed % 2 == 1
        self.producer = Producer(self.settings.name)
        self._number = 0
        self._tickets: list[_Ticketed] = []
        self.doomed: set[int] = set()
        self.jobs = JobThreads(self)
        self.subscribing = Subscribing(self)
        self.staging = Staging(self)
        self._keyed = KeyedProducers(self)
        self._lone = LonePushes(self)
        self.disk = SimDisk()
        if profile.keyed_share:
            put_elsewhere(self.disk)
        self._attach(self.disk)

    # --- the machine ------------------------------------------------------------------------------------------------------

    def _attach(self, disk: SimDisk) -> None:
        disk.pause_in_sync = self.jobs.pause
        self.disk = disk
        self.faulty.inner = Recorder(disk, self._before)
        self.monitor = OrderMonitor(self.faulty, self._may_unlink, sequences_in)

    def _before(self, call: Call) -> None:
        self.jobs.pause()
        if self._keeps_moments:
            path = call.target or call.path
            self.moments.append(Moment(self.disk.copy(), self.calls, call_site(call.kind), path))
        self.calls += 1

    def _may_unlink(self, path: str) -> bool:
        return int(path.rpartition("/")[2].partition(".")[0]) in self.ledger.condemned

    # --- operations -------------------------------------------------------------------------------------------------------

    def run(self, operations: int | None = None) -> None:
        """Do that many operations, then bring everything to rest and compare it with the ledger."""
        steps = (
            (self._push, 0 if self._only_stages else 30),
            (self._lone.push, 0 if self._only_stages else 6),
            (self.jobs.let_run, 25),
            (self.subscribing.claim, 10),
            (self.subscribing.resolve, 14),
            (self._advance, 8),
            (self._seal, 4),
            (self.subscribing.register, 4),
            (self.subscribing.follow, 8),
            (self.subscribing.release, 2),
            (self.subscribing.unregister, 1),
            (self._flush, 3),
            (self._restart, 5 if self.profile.transacts else 1),
            (self._crash, 2 if self._only_stages else 1),
            (self._change_space, 8 if self.profile.fills_disk else 0),
            (self._evict, 8 if self.profile.evicts else 0),
            (self._age, 12 if self.profile.ages else 0),
            (self._press, 2),
            *(self.staging.operations if self.profile.transacts else ()),
        )
        functions, weights = zip(*steps, strict=True)
        for _ in range(operations or self.profile.operations * (3 if self._only_stages else 1)):
            self.random.choices(functions, weights)[0]()
            if self.has_ended:
                return
            self.jobs.start()
            self.observe(self.engine.tick())
        if not self.has_faults:
            self.rest()

    def run_script(self, *operations: str) -> None:
        """Do these operations, each followed by every job that is due then; nothing is sealed but by the settings."""
        known = {
            "push": self._push,
            "register": self.subscribing.register_all,
            "claim": self.subscribing.claim,
            "resolve": self.subscribing.resolve,
        }
        for operation in operations:
            {**known, "follow": self.subscribing.follow}[operation]()
            self.jobs.start()
            self.clock.now_ns += self.settings.progress_flush_interval_ns
            self.jobs.finish_all()

    def _push(self) -> None:
        """One turn of a worker: some pushes, then one write."""
        for _ in range(self.random.randint(1, 3)):
            try:
                if not self._push_once():
                    return
            except EngineFailed:  # a dictionary of a bundle before could not be read back
                assert self.has_faults
                break
            if self.random.random() < 0.2:
                self.jobs.start()  # a finished job may come between two pushes of a turn
        self.observe(self.engine.write())

    def _push_once(self) -> bool:
        """Stage one push; False if it has to wait for room."""
        if self.profile.keyed_share and self.random.random() < self.profile.keyed_share:
            self._keyed.push()
            return True
        memory, push, schemas = self.producer.lay_out(bundles := self.next_bundles())
        if not self.engine.intake.can_stage(len(memory)):
            self.observe(self.engine.write())
            self.jobs.let_run()
            return False
        (run,) = self.engine.intake.stage(memory, push, schemas)
        for i, slots in enumerate(bundles):
            self.note_pushed((run.segment_seq, run.bundle_index + i), run.sequence + i, slots)
        return True

    def note_pushed(self, id_: BundleId, sequence: int, slots: Slots) -> None:
        """A bundle was taken under that id."""
        assert id_ not in self.ledger.bundles, f"{id_} is used twice"
        self.ledger.bundles[id_] = PushedBundle(id_, sequence, slots, self.clock.now_ns, self.calls)

    def next_bundles(self) -> list[Slots]:
        """What one push holds: now and then so many with the same slots that they are checked and completed at once."""
        if self.profile.keyed_share and self.random.random() < _UNIFORM_SHARE:
            self._number += UNIFORM_ENTRIES_MIN
            slot_count = self.random.choice((1, 3))
            return [tiny(self._number - i, slot_count) for i in range(UNIFORM_ENTRIES_MIN)]
        return [self.next_bundle() for _ in range(self.random.choice((1, 1, 2, 5)))]

    def next_bundle(self) -> Slots:
        """A bundle that differs from all before it."""
        number, self._number = self._number, self._number + 1
        share = 0.8 if self.profile.ages else 0.0
        return any_bundle(number, self.random, big_share=self.profile.big_share, dictionary_share=share)

    def ticketed(self, ticket: int) -> Fact:
        fact = Fact(self.calls)
        self._tickets.append(_Ticketed(ticket, fact))
        return fact

    def is_doomed(self, segment_seq: int) -> bool:
        """It is deleted, or a job that deletes it is under way: one that a crash has cut off may have left it for good."""
        return segment_seq in self.doomed or self.ledger.is_deleted(segment_seq, self.calls)

    def _flush(self) -> None:
        self.engine.progress.flush()

    def _seal(self) -> None:
        self.engine.seal_now()

    def _change_space(self) -> None:
        """The disk is full to the last block, or nearly, or has room again."""
        free = self.random.choice((0, 1, 20, None)) if self.disk.capacity_bytes is None else None
        self.disk.capacity_bytes = None if free is None else self.disk.used_bytes + free * BLOCK_BYTES

    def _evict(self) -> None:
        """Carry out a claim of the coordinator."""
        retention = self.engine.retention
        last_class = self.random.choice(list(EvictionClass))
        chosen = choose(retention.candidates(), last_class, NO_LIMIT, self.random.choice((1, 8_000, 40_000)))
        retention.let_go(chosen)
        self.ledger.made_room |= {candidate.segment_seq for candidate in chosen}
        lost = {c.segment_seq for c in chosen if c.eviction_class in (EvictionClass.UNPROCESSED, EvictionClass.CLAIMED)}
        for segment_seq in lost:
            self.ledger.drop(segment_seq, self.ticketed(self.engine.progress.ticket))
        self.subscribing.lose(lost)

    def _press(self) -> None:
        """Move the node near its size cap, or away from it: near it, a spare log file that nothing needs is deleted."""
        self.engine.storage.releases_spare = self.random.random() < 0.5

    def _age(self) -> None:
        """Long enough for segments to be compacted, or scrubbed; nobody holds a claim as long as that."""
        self.jobs.finish()
        self.subscribing.release_all()
        self.clock.now_ns += self.random.choice((COMPACTION_AGE_NS, SCRUB_AGE_NS))

    def _advance(self) -> None:
        self.clock.now_ns += self.random.choice((1, 10, 60, 300)) * MILLISECOND_NS

    # --- what is seen -----------------------------------------------------------------------------------------------------

    def observe(self, events: list[Event]) -> None:
        """Write down what the engine has said, by events and by its numbers."""
        for event in events:
            assert not isinstance(event, Failed) or self.has_faults, event
            if isinstance(event, GapFound):
                self._note_gap(event)
            if isinstance(event, Sealed):
                content = self.oracle.content(self.disk, event.segment_seq)
                self.ledger.positions.setdefault(event.segment_seq, (*content.positions, self.calls))
            self.staging.observe(event)
        reached, durability = self.engine.group_commit.acknowledges
        for bundle in self.ledger.bundles.values():
            if bundle.lost_at != NEVER or bundle.is_staged:
                continue
            if bundle.sequence < reached and durability is Durability.WRITTEN and bundle.written_at == NEVER:
                bundle.written_at = self.calls
            durable = max(self.engine.group_commit.sequence_durable, reached if durability is Durability.SYNCED else 0)
            if bundle.sequence < durable and bundle.durable_at == NEVER:
                bundle.durable_at = self.calls
                self.monitor.acknowledged(bundle.sequence)
        for ticketed in self._tickets:
            if ticketed.ticket <= self.engine.progress.durable:
                ticketed.fact.durable_at = self.calls
                self._check_progress_files()
        self._tickets = [ticketed for ticketed in self._tickets if ticketed.fact.durable_at == NEVER]

    def _check_progress_files(self) -> None:
        """Progress was told to be durable."""
        if self.jobs.writes_progress:
            return  # the next one is being written
        for subscriber in self.engine.owed.subscriber_figures():
            self.monitor.progress_told(f"{DIRECTORY}/{progress_file_name(subscriber)}")
        self.monitor.progress_told(f"{DIRECTORY}/{JOURNAL_NAME}")

    def _note_gap(self, gap: GapFound) -> None:
        """Only bundles that were never promised may be lost, or, where reads fail, those of a segment that was abandoned."""
        if self.has_faults and gap.reason == "damaged":
            self.ledger.deletions[gap.segment_seq] = Deletion(self.calls)
            return
        if gap.reason == "evicted":
            assert gap.segment_seq in self.ledger.drops, gap
            return
        for index in range(gap.bundle_index, gap.bundle_index + gap.bundle_count):
            assert self.ledger.bundles[gap.segment_seq, index].lost_at != NEVER, gap

    # --- ends of processes --------------------------------------------------------------------------------------------------

    def rest(self) -> None:
        """Let everything finish that is due; then the ledger and the engine must agree on every bundle."""
        self.jobs.finish()
        self.disk.capacity_bytes = None
        self.clock.now_ns += SECOND_NS
        self.engine.seal_now()
        self.jobs.finish_all()
        self.subscribing.end_claims()
        if not self.has_faults:
            self.compare()

    def compare(self) -> None:
        """The engine must show what the ledger says."""
        survey = self._survey()
        self.oracle.check(survey, self.calls, is_kill=True)
        self.ledger.condemn(survey.doomed)

    def _survey(self) -> Survey:
        was, self._keeps_moments = self._keeps_moments, False
        survey = self.oracle.survey(self.monitor, self.engine)
        self._keeps_moments = was
        self.doomed |= survey.doomed
        return survey

    def start(self) -> World:
        """Open the engine. Returns itself."""
        self.starts += 1
        self.ledger.condemned.clear()
        self.engine = self.oracle.open(self.monitor, self.clock, self.disk)
        return self

    @property
    def takes_bundles(self) -> bool:
        return self.engine.state in (EngineState.READY, EngineState.FULL)

    @property
    def has_ended(self) -> bool:
        return self.engine.state in (EngineState.FAILED, EngineState.CLOSED)

    def _restart(self) -> None:
        """A clean stop and a new start."""
        if self.random.random() < 0.5:
            return
        self.rest()
        self.engine.drain()
        self.jobs.finish_all()
        if self.has_faults and not self.engine.is_drained:
            return
        assert self.engine.is_drained
        self.engine.close()
        self._attach(self.disk)
        self.start()
        self.subscribing.forget()
        if not self.has_faults:
            self.compare()

    def _crash(self) -> None:
        """The end of the process or of the power; the run goes on with what is left."""
        if self.has_faults:
            return
        mode = self.random.choice(list(CrashMode))
        at = self.calls
        self.jobs.abandon()
        self.subscribing.forget()
        self._tickets.clear()
        self.doomed.clear()
        self._attach(self.disk.crash(mode, self.random.randrange(1 << 30)))
        self.start()
        survey = self._survey()
        self.oracle.check(survey, at, is_kill=mode is CrashMode.KEEP)
        self._accept(survey, at)
        self.ledger.condemn(survey.doomed)

    def _accept(self, survey: Survey, crashed_at: int) -> None:
        """Take over what the survey found after a crash: what is stored is durable now, the rest is lost since the crash. A later kill does
        not find it, even if it was promised to survive kills."""
        now = self.calls
        for bundle in self.ledger.bundles.values():
            if survey.holds(bundle.id):
                bundle.durable_at = min(bundle.durable_at, now)
            elif not self.ledger.may_be_deleted(bundle.id[0], now):
                bundle.lost_at = min(bundle.lost_at, crashed_at)
        for segment_seq, deletion in self.ledger.deletions.items():
            if segment_seq not in survey.segments:
                deletion.done_at = min(deletion.done_at, now)
        for segment_seq, content in survey.segments.items():
            self.ledger.positions.setdefault(segment_seq, (*content.positions, now))
        deliverable = {id_[0] for ids in survey.deliverable.values() for id_ in ids}
        self.ledger.forget_drops(deliverable, survey.segments, now, has_subscribers=bool(survey.deliverable))
        next_sequence = 1 + max((b.sequence for b in self.ledger.bundles.values()), default=-1)
        for subscription in self.ledger.subscriptions:
            if subscription.ended.durable_at == NEVER:
                subscription.ended = Fact(min(subscription.ended.done_at, now), now)
        for subscriber, owed in survey.deliverable.items():
            self.ledger.subscriptions.append(
                Subscription(
                    subscriber, Fact(now, now), next_sequence, frozenset(owed), ownership=survey.owners[subscriber]
                )
            )
        self.staging.accept(survey)
        self._keyed.accept(survey)
