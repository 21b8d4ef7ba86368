"""One engine in a world of its own: producers, subscribers, an operator, three threads, a clock and a disk, all driven by a seed.

A run is a random sequence of what a worker does with an engine. Its jobs are stepped call by call between those operations, so
that syncs, seals and writes interleave as they do in a worker. Before each call that changes the disk the run keeps a moment: a copy
of the disk as it is then. The ledger says what a crash at that moment must leave.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Any

from quiver_actors import jobs
from quiver_actors.config import RetentionSettings, SegmentSettings, TopicSettings, WalSettings
from quiver_actors.disk.crashes import CrashMode
from quiver_actors.disk.faulty import CallSite, FaultyDisk, call_site
from quiver_actors.disk.interposed import Call, InterposedDisk, Result
from quiver_actors.disk.monitor import OrderMonitor
from quiver_actors.disk.protocol import Disk
from quiver_actors.disk.simulated import BLOCK_BYTES, SimDisk
from quiver_actors.engine import Engine, EngineState
from quiver_actors.errors import DiskError, EngineFailed
from quiver_actors.events import Event, Failed, GapFound, Sealed
from quiver_actors.jobs import Job
from quiver_actors.model import Durability
from quiver_actors.retention.choice import choose
from quiver_actors.subscriber.progress import progress_file_name
from quiver_actors.supervisor.figures import NO_LIMIT, EvictionClass
from quiver_actors.units import MILLISECOND_NS, SECOND_NS
from quiver_actors.upkeep import COMPACTION_AGE_NS, SCRUB_AGE_NS, SlicedJob
from quiver_actors.wal import layout
from quiver_actors.wal.uniform import UNIFORM_ENTRIES_MIN
from tests.sim.bundles import Producer, Slots, any_bundle, tiny
from tests.sim.keyed import KeyedProducers
from tests.sim.ledger import NEVER, BundleId, Deletion, Fact, Ledger, PushedBundle, Subscription
from tests.sim.oracle import DIRECTORY, ManualClock, Oracle, Survey
from tests.sim.staging import Staging
from tests.sim.turns import Turn

SUBSCRIBERS = ("ann", "ben", "cat")
_UNIFORM_SHARE = 0.04


@dataclass(frozen=True, slots=True)
class Profile:
    """A kind of run: the topic's settings and how likely what is."""

    name: str
    settings: TopicSettings
    big_share: float = 0.03
    fills_disk: bool = False
    ages: bool = False
    """Minutes and days go by, so that segments are compacted and scrubbed; many dictionaries make that pay."""
    operations: int = 60
    evicts: bool = False
    transacts: bool = False
    keyed_share: float = 0.15
    """Of the pushes: those of idempotent producers. With none, no push holds many bundles of one schema either."""


def _profile(
    name: str,
    big_share: float = 0.03,
    fills_disk: bool = False,
    ages: bool = False,
    evicts: bool = False,
    transacts: bool = False,
    keyed_share: float = 0.15,
    **changes: Any,
) -> Profile:
    segment = {"target_size_bytes": 6_000} | {k[8:]: v for k, v in changes.items() if k.startswith("segment_")}
    wal = {k[4:]: v for k, v in changes.items() if k.startswith("wal_")}
    rest = {k: v for k, v in changes.items() if not k.startswith(("segment_", "wal_"))}
    settings = TopicSettings(name="topic", segment=SegmentSettings(**segment), wal=WalSettings(**wal), **rest)
    operations = 140 if transacts else 60
    return Profile(name, settings, big_share, fills_disk, ages, operations, evicts, transacts, keyed_share)


PROFILES = (
    _profile("size", keyed_share=0.0, retention=RetentionSettings(quarantine_cap_bytes=0)),
    _profile("timer", wal_flush_interval_ns=25 * MILLISECOND_NS),
    _profile("streams", segment_max_stream_count=2, segment_target_size_bytes=40_000),
    _profile("segment_only", durability="segment_only"),
    _profile("bundles", segment_max_bundle_count=4, segment_target_size_bytes=40_000),
    _profile("big", big_share=0.4),
    _profile("age", segment_max_open_duration_ns=30 * MILLISECOND_NS, segment_target_size_bytes=60_000),
    _profile("lag", wal_max_rotated_files=1, segment_target_size_bytes=2_000),
    _profile("full", keyed_share=0.0, fills_disk=True, segment_target_size_bytes=3_000),
    _profile(
        "evict",
        keyed_share=0.0,
        evicts=True,
        fills_disk=True,
        segment_target_size_bytes=2_000,
        retention=RetentionSettings(size_cap_policy="drop_oldest", steady_state_headroom_bytes=12_000),
    ),
    _profile("upkeep", keyed_share=0.0, ages=True, big_share=0.0, segment_target_size_bytes=20_000),
    _profile("transactions", transacts=True),
    _profile("segment_only transactions", transacts=True, durability="segment_only"),
    _profile(
        "full transactions",
        transacts=True,
        evicts=True,
        fills_disk=True,
        segment_target_size_bytes=3_000,
        retention=RetentionSettings(size_cap_policy="drop_oldest", steady_state_headroom_bytes=12_000),
    ),
    _profile("producers", keyed_share=0.8, segment_target_size_bytes=4_000),
)


@dataclass(slots=True)
class Moment:
    """The disk right before a call."""

    disk: SimDisk
    at: int
    """How many calls were done."""
    site: CallSite
    """Of the call that is next."""
    path: str = ""
    """What it changes."""


class Recorder(InterposedDisk):
    """Tells the world of each call that changes the disk, before it is done."""

    sees_reads = False

    def __init__(self, inner: Disk, before: Callable[[Call], None]) -> None:
        super().__init__(inner)
        self._before = before

    def around(self, call: Call, proceed: Callable[[], Result]) -> Result:
        self._before(call)
        return proceed()


def sequences_in(call: Call) -> list[int]:
    """The sequences of the log entries that a write brings to disk."""
    if "/wal/" not in call.path or call.path.endswith((".cursor", ".cursor.tmp")):
        return []
    data, found = b"".join(call.buffers), []
    at = layout.HEADER_BYTES if data.startswith(layout.WAL_MAGIC) else 0
    while at + layout.ENTRY_HEAD.size <= len(data):
        length, entry_type, _, sequence, _ = layout.ENTRY_HEAD.unpack_from(data, at)
        if not length or entry_type != layout.ENTRY_TYPE_BUNDLE:
            break
        found.append(sequence)
        at += length + layout.ENTRY_OVERHEAD_BYTES
    return found


@dataclass(slots=True)
class _Ticketed:
    ticket: int
    fact: Fact


@dataclass(slots=True)
class _Work:
    """A job in its thread."""

    job: Job
    turn: Turn


class World:
    """See the module. `start` and `run` do everything; `moments`, `ledger` and `oracle` are what is left.

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
        self.oracle = Oracle(self.ledger, self.settings)
        self.clock = ManualClock()
        self.moments: list[Moment] = []
        self.calls = 0
        self.starts = 0
        self.has_faults = faulty is not None
        self.faulty = faulty or FaultyDisk(SimDisk())
        self.monitor: OrderMonitor
        self.engine: Engine
        self._keeps_moments = keeps_moments
        self.producer = Producer(self.settings.name)
        self._number = 0
        self._commit: _Work | None = None
        self._background: _Work | None = None
        self._tickets: list[_Ticketed] = []
        self._claimed: dict[tuple[str, BundleId], object] = {}
        self._tokens: dict[tuple[str, BundleId], int] = {}
        self._owners: list[object] = []
        self._doomed: set[int] = set()
        self.staging = Staging(self)
        self._keyed = KeyedProducers(self)
        self.disk = SimDisk()
        self._attach(self.disk)

    # --- the machine ------------------------------------------------------------------------------------------------------

    def _attach(self, disk: SimDisk) -> None:
        disk.pause_in_sync = self._pause
        self.disk = disk
        self.faulty.inner = Recorder(disk, self._before)
        self.monitor = OrderMonitor(self.faulty, self._may_unlink, sequences_in)

    def _before(self, call: Call) -> None:
        self._pause()
        if self._keeps_moments:
            path = call.target or call.path
            self.moments.append(Moment(self.disk.copy(), self.calls, call_site(call.kind), path))
        self.calls += 1

    def _pause(self) -> None:
        for work in (self._commit, self._background):
            if work is not None and work.turn.is_current:
                work.turn.pause()

    def _may_unlink(self, path: str) -> bool:
        return self.ledger.may_delete(int(path.rpartition("/")[2].partition(".")[0]))

    # --- operations -------------------------------------------------------------------------------------------------------

    def run(self, operations: int | None = None) -> None:
        """Do that many operations, then bring everything to rest and compare it with the ledger."""
        steps = (
            (self._push, 30),
            (self.let_jobs_run, 25),
            (self._claim, 10),
            (self._resolve, 14),
            (self._advance, 8),
            (self._seal, 4),
            (self._register, 4),
            (self._release, 2),
            (self._unregister, 1),
            (self._flush, 3),
            (self._restart, 5 if self.profile.transacts else 1),
            (self._crash, 1),
            (self._change_space, 8 if self.profile.fills_disk else 0),
            (self._evict, 8 if self.profile.evicts else 0),
            (self._age, 12 if self.profile.ages else 0),
            (self._press, 2),
            *(self.staging.operations if self.profile.transacts else ()),
        )
        functions, weights = zip(*steps, strict=True)
        for _ in range(operations or self.profile.operations):
            self.random.choices(functions, weights)[0]()
            if self.has_ended:
                return
            self._start_jobs()
            self._observe(self.engine.tick())
        if not self.has_faults:
            self.rest()

    def run_script(self, *operations: str) -> None:
        """Do these operations, each followed by every job that is due then; nothing is sealed but by the settings."""
        for operation in operations:
            {"push": self._push, "register": self._register_all, "claim": self._claim, "resolve": self._resolve}[
                operation
            ]()
            self._start_jobs()
            self.clock.now_ns += self.settings.progress_flush_interval_ns
            self.finish_all()

    def _register_all(self) -> None:
        while len({s.subscriber for s in self.ledger.subscriptions}) < len(SUBSCRIBERS):
            self._register()

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
                self._start_jobs()  # a finished job may come between two pushes of a turn
        self._observe(self.engine.write())

    def _push_once(self) -> bool:
        """Stage one push; False if it has to wait for room."""
        if self.profile.keyed_share and self.random.random() < self.profile.keyed_share:
            self._keyed.push()
            return True
        memory, push, schemas = self.producer.lay_out(bundles := self.next_bundles())
        if not self.engine.can_stage(len(memory)):
            self._observe(self.engine.write())
            self.let_jobs_run()
            return False
        (run,) = self.engine.stage(memory, push, schemas)
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

    def let_jobs_run(self) -> None:
        for _ in range(self.random.choice((1, 3, 10, 40))):
            self._start_jobs()
            running = [work for work in (self._commit, self._background) if work is not None]
            if not running:
                return
            self._step(self.random.choice(running))

    def _step(self, work: _Work) -> None:
        work.turn.step()
        if not work.turn.is_done:
            return
        if work is self._commit:
            self._commit = None
        else:
            self._background = None
        work.job.took_ns = 0
        self._note_finished(work.job)
        self._observe(self.engine.finish(work.job))

    def _start_jobs(self) -> None:
        if self._commit is None and (job := self.engine.next_commit()) is not None:
            self._commit = _Work(job, Turn(job.run))
        if self._background is None and (job := self.engine.next_background()) is not None:
            self.staging.note_places()
            if isinstance(job, jobs.DeleteJob):
                for segment_seq in job.segment_seqs:
                    self.ledger.deletions.setdefault(segment_seq, Deletion(self.calls))
                self._doomed.update(job.segment_seqs)
            if isinstance(job, SlicedJob):
                job.slice_ns = 0
            self._background = _Work(job, Turn(job.run))

    def _claim(self) -> None:
        subscriber = self.random.choice(SUBSCRIBERS)
        subscription = self.ledger.live(subscriber)
        if subscription is None:
            return
        owner = object()
        self._owners.append(owner)
        for segment_seq, indexes, token, *_ in self.engine.claim(subscriber, owner, self.random.choice((1, 4, 20))):
            for id_ in [(segment_seq, index) for index in indexes]:
                bundle = self.ledger.bundles[id_]
                is_right = subscription.owes(bundle) or id_ in subscription.may_get
                assert is_right, f"{subscriber} gets {id_}, which it is not owed"
                assert id_ not in subscription.resolved, f"{subscriber} gets {id_} again"
                assert (subscriber, id_) not in self._claimed, f"{id_} is claimed twice"
                self._claimed[subscriber, id_] = owner
                self._tokens[subscriber, id_] = token

    def _resolve(self) -> None:
        held = list(self._claimed.items())
        if not held:
            return
        (subscriber, (segment_seq, bundle_index)), owner = self.random.choice(held)
        token = self._tokens[subscriber, (segment_seq, bundle_index)]
        mine = [i for (s, (q, i)), o in held if s == subscriber and q == segment_seq and o is owner]
        mine = [i for i in mine if self._tokens[subscriber, (segment_seq, i)] == token]
        chosen = sorted(self.random.sample(mine, self.random.randint(1, len(mine))))
        outcome = self.random.choice(("ack", "ack", "ack", "reject", "defer"))
        delay_ns = self.random.choice((0, 5 * MILLISECOND_NS))
        refused = self.engine.resolve(subscriber, owner, segment_seq, token, outcome, chosen, delay_ns)
        assert not refused, f"{owner} does not hold {refused} of {segment_seq}"
        for index in chosen:
            del self._claimed[subscriber, (segment_seq, index)]
        if outcome == "defer":
            return
        subscription = self.ledger.live(subscriber)
        assert subscription is not None
        for index in chosen:
            subscription.resolved[segment_seq, index] = self._ticketed(self.engine.progress_ticket())

    def _ticketed(self, ticket: int) -> Fact:
        fact = Fact(self.calls)
        self._tickets.append(_Ticketed(ticket, fact))
        return fact

    def _release(self) -> None:
        if self._owners:
            owner = self._owners.pop(self.random.randrange(len(self._owners)))
            self._observe(self.engine.release(owner))
            self._claimed = {key: holder for key, holder in self._claimed.items() if holder is not owner}

    def _register(self) -> None:
        if self.staging.is_publishing:
            return
        subscriber = self.random.choice(SUBSCRIBERS)
        start, wants = self._any_start()
        is_known = self.ledger.live(subscriber) is not None
        next_sequence = 1 + max((b.sequence for b in self.ledger.bundles.values() if b.lost_at == NEVER), default=-1)
        try:
            ticket = self.engine.register(subscriber, start)
        except DiskError:  # the times of old bundles are read for it
            assert self.has_faults
            return
        if is_known:
            return
        behind = [b for b in self.ledger.bundles.values() if b.lost_at == NEVER and wants(b)]
        gone = {seq for seq in {b.id[0] for b in behind} if self._is_doomed(seq)}
        given_up = frozenset(b.id for b in behind if b.id[0] in self.ledger.drops)
        owed = frozenset(b.id for b in behind if b.id[0] not in gone) - given_up
        self.ledger.subscriptions.append(
            Subscription(subscriber, self._ticketed(ticket), next_sequence, owed, may_get=given_up)
        )

    def _is_doomed(self, segment_seq: int) -> bool:
        """It is deleted, or a job that deletes it is under way: one that a crash has cut off may have left it for good."""
        return segment_seq in self._doomed or self.ledger.is_deleted(segment_seq, self.calls)

    def _any_start(self) -> tuple[str, Callable[[PushedBundle], bool]]:
        """One of the places where a subscriber may begin, and which of the bundles so far lie behind it."""
        kind = self.random.choice(("earliest", "latest", "time", "bundle"))
        if kind in ("earliest", "latest") or not self.ledger.bundles:
            return ("latest", lambda bundle: False) if kind == "latest" else ("earliest", lambda bundle: True)
        first = self.random.choice(list(self.ledger.bundles.values()))
        if kind == "time":
            return f"time:{first.time_ns}", lambda bundle: bundle.time_ns >= first.time_ns
        return f"bundle:0/{first.id[0]}/{first.id[1]}", lambda bundle: bundle.id >= first.id

    def _unregister(self) -> None:
        subscriber = self.random.choice(SUBSCRIBERS)
        subscription = self.ledger.live(subscriber)
        if subscription is not None:
            subscription.ended = self._ticketed(self.engine.unregister(subscriber)[0])
            self._claimed = {key: owner for key, owner in self._claimed.items() if key[0] != subscriber}

    def _flush(self) -> None:
        self.engine.flush_progress()

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
        lost = {c.segment_seq for c in chosen if c.eviction_class in (EvictionClass.UNPROCESSED, EvictionClass.CLAIMED)}
        for segment_seq in lost:
            self.ledger.drop(segment_seq, self._ticketed(self.engine.progress_ticket()))
            # Claims on it are over.
            self._claimed = {key: owner for key, owner in self._claimed.items() if key[1][0] != segment_seq}

    def _press(self) -> None:
        """The node is near its size cap, or is not any more: a spare that nothing needs now is given up."""
        self.engine.releases_spare = self.random.random() < 0.5

    def _age(self) -> None:
        """Long enough for segments to be compacted, or scrubbed; nobody holds a claim as long as that."""
        self.finish_jobs()
        while self._owners:
            self._release()
        self.clock.now_ns += self.random.choice((COMPACTION_AGE_NS, SCRUB_AGE_NS))

    def _advance(self) -> None:
        self.clock.now_ns += self.random.choice((1, 10, 60, 300)) * MILLISECOND_NS

    # --- what is seen -----------------------------------------------------------------------------------------------------

    def _note_finished(self, job: Job) -> None:
        if isinstance(job, jobs.DeleteJob) and job.error is None:
            for segment_seq in job.segment_seqs:
                self.ledger.deletions[segment_seq].done_at = self.calls
            self._doomed.clear()

    def _observe(self, events: list[Event]) -> None:
        """Write down what the engine has said, by events and by its numbers."""
        for event in events:
            assert not isinstance(event, Failed) or self.has_faults, event
            if isinstance(event, GapFound):
                self._note_gap(event)
            if isinstance(event, Sealed):
                content = self.oracle.content(self.disk, event.segment_seq)
                self.ledger.positions.setdefault(event.segment_seq, (*content.positions, self.calls))
            self.staging.observe(event)
        reached, durability = self.engine.acknowledges
        for bundle in self.ledger.bundles.values():
            if bundle.lost_at != NEVER or bundle.is_staged:
                continue
            if bundle.sequence < reached and durability is Durability.WRITTEN and bundle.written_at == NEVER:
                bundle.written_at = self.calls
            durable = max(self.engine.sequence_durable, reached if durability is Durability.SYNCED else 0)
            if bundle.sequence < durable and bundle.durable_at == NEVER:
                bundle.durable_at = self.calls
                self.monitor.acknowledged(bundle.sequence)
        for ticketed in self._tickets:
            if ticketed.ticket <= self.engine.progress_durable:
                ticketed.fact.durable_at = self.calls
                self._check_progress_files()
        self._tickets = [ticketed for ticketed in self._tickets if ticketed.fact.durable_at == NEVER]

    def _check_progress_files(self) -> None:
        """Progress was told to be durable."""
        if self._background is not None and isinstance(self._background.job, jobs.ProgressJob):
            return  # the next one is being written
        for subscriber in self.engine.subscriber_figures():
            self.monitor.progress_told(f"{DIRECTORY}/{progress_file_name(subscriber)}")

    def _note_gap(self, gap: GapFound) -> None:
        """Only bundles that were never promised may be lost, or, where reads fail, those of a segment that was given up."""
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
        self.finish_jobs()
        self.disk.capacity_bytes = None
        self.clock.now_ns += SECOND_NS
        self.engine.seal_now()
        self.finish_all()
        for owner in self._owners:
            self.engine.release(owner)
        self._claimed.clear()
        if not self.has_faults:
            self.compare()

    def finish_jobs(self) -> None:
        """Let the jobs finish that are out, and those that follow from them."""
        while work := self._commit or self._background:
            self._step(work)
            self._start_jobs()

    def finish_all(self) -> None:
        """The same, with what time asks for."""
        self._observe(self.engine.tick())
        self._start_jobs()
        while work := self._commit or self._background:
            self._step(work)
            self._observe(self.engine.tick())
            self._start_jobs()

    def compare(self) -> None:
        """The engine must show what the ledger says."""
        survey = self._survey()
        self.oracle.check(survey, self.calls, is_kill=True)

    def _survey(self) -> Survey:
        was, self._keeps_moments = self._keeps_moments, False
        survey = self.oracle.survey(self.monitor, self.engine)
        self._keeps_moments = was
        self._doomed |= survey.doomed
        return survey

    def start(self) -> World:
        """Open the engine. Returns itself."""
        self.starts += 1
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
        self.finish_all()
        if self.has_faults and not self.engine.is_drained:
            return
        assert self.engine.is_drained
        self.engine.close()
        self._attach(self.disk)
        self.start()
        self._claimed.clear()
        if not self.has_faults:
            self.compare()

    def _crash(self) -> None:
        """The end of the process or of the power; the run goes on with what is left."""
        if self.has_faults:
            return
        mode = self.random.choice(list(CrashMode))
        at = self.calls
        self.abandon_jobs()
        self._claimed.clear()
        self._tickets.clear()
        self._doomed.clear()
        self._attach(self.disk.crash(mode, self.random.randrange(1 << 30)))
        self.start()
        survey = self._survey()
        self.oracle.check(survey, at, is_kill=mode is CrashMode.KEEP)
        self._accept(survey, at)

    def abandon_jobs(self) -> None:
        """The threads end where they are."""
        if hasattr(self, "engine"):
            self.staging.sync()
        for work in (self._commit, self._background):
            if work is not None:
                work.turn.abandon()
        self._commit = self._background = None

    def _accept(self, survey: Survey, crashed_at: int) -> None:
        """What is there after a crash is durable now, what is not there is lost since the crash: a kill of the start behind it finds it no
        more, even if it was promised to survive kills."""
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
            self.ledger.subscriptions.append(Subscription(subscriber, Fact(now, now), next_sequence, frozenset(owed)))
        self.staging.accept(survey)
        self._keyed.accept(survey)
