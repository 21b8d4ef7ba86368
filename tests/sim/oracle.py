"""Opens what a crash has left, looks at it as a subscriber and an operator would, and compares it with the ledger.

What is demanded of every state
- No start says that a log is gone.
- Every promised bundle is there under its id and sequence, with exactly the slots that were pushed.
- Whatever else is there is a whole bundle that was pushed under that id, or a numbered hole where none was promised.
- Bundles stand in the order of their sequences; no log position belongs to two segments.
- A subscriber whose registration is durable is known and is owed every promised bundle that it has not resolved; what it has
  resolved durably is never delivered again. One whose end is durable is unknown. It belongs to whoever registered it.
- A deleted segment does not come back.
- Of transactions: see `stage_ledger`. No bundle with the key of an idempotent producer is there twice.
- New bundles get numbers and positions that were never used.
"""

from __future__ import annotations

import errno
from dataclasses import dataclass
from itertools import pairwise

from quiver_actors.base.clock import Clock
from quiver_actors.base.config import TopicSettings
from quiver_actors.base.homes import STANDING_ALONE, ProducerHomes
from quiver_actors.base.rights import OF_TOPICS_OWNER, Ownership
from quiver_actors.errors import DiskError
from quiver_actors.store.disk.protocol import NO_SPACE_ERRNOS, Disk, read_whole
from quiver_actors.store.engine import Engine, EngineState
from quiver_actors.store.engine.events import Event, Failed, GapFound
from quiver_actors.store.jobs.removal import DeleteJob
from quiver_actors.store.segment.reader import SegmentReader
from quiver_actors.store.staged.states import StageState
from tests.disks.simulated import SimDisk
from tests.sim.bundles import Slots, plain, same_slots
from tests.sim.keyed import check_once, check_producers_go_on
from tests.sim.ledger import BundleId, Ledger, PushedBundle, Subscription
from tests.sim.stage_ledger import Seen

DIRECTORY = "data/topic/core_0"
_EVERYTHING = 1 << 30
_FILE_BYTES_MAX = 1 << 30


class ManualClock:
    """Time that moves only when told."""

    def __init__(self) -> None:
        self.now_ns = 1_700_000_000_000_000_000

    def monotonic_ns(self) -> int:
        return self.now_ns

    def unix_ns(self) -> int:
        return self.now_ns


@dataclass(slots=True)
class SegmentContent:
    """A segment file as its reader shows it."""

    bundles: list[tuple[int, Slots]]
    """Sequence and slots by index; no slots where a bundle was lost."""
    positions: tuple[int, int]


@dataclass(slots=True)
class Survey:
    """State that one opened engine shows."""

    segments: dict[int, SegmentContent]
    deliverable: dict[str, list[BundleId]]
    """Per known subscriber, in order of delivery."""
    events: list[Event]
    """What the engine told meanwhile."""
    doomed: set[int]
    """Segments that are to be deleted."""
    staged: set[int]
    """Numbers of the stages that wait for their decision."""
    missing_logs: list[str]
    """What the start has said of logs that are gone."""
    owners: dict[str, Ownership]
    """Owner of each known subscriber."""

    def sequence_of(self, id_: BundleId) -> int:
        return self.segments[id_[0]].bundles[id_[1]][0]

    def holds(self, id_: BundleId) -> bool:
        content = self.segments.get(id_[0])
        return content is not None and id_[1] < len(content.bundles) and bool(content.bundles[id_[1]][1])


def settle(engine: Engine, doomed: set[int] | None = None) -> list[Event]:
    """Run everything that is due, one job after the other, but delete nothing: what there is shall be looked at first.

    Args:
        doomed: takes the segments that were to be deleted; they still are.
    """
    events: list[Event] = []
    while True:
        events += engine.tick()
        found = [job for job in (engine.next_commit(), engine.next_background()) if job is not None]
        for job in found:
            if isinstance(job, DeleteJob):
                if doomed is not None:
                    doomed.update(job.segment_seqs)
                job.error = DiskError("unlink", DIRECTORY, errno.ENOSPC, "postponed by the test")
            else:
                job.run()
            job.took_ns = 0  # time is the clock's alone
            events += engine.finish(job)
        if not found:
            return events


class Oracle:
    """Judges surveys against one ledger. Contents that were compared once are not compared again."""

    def __init__(self, ledger: Ledger, settings: TopicSettings, homes: ProducerHomes = STANDING_ALONE) -> None:
        self.ledger = ledger
        self.homes = homes
        self.settings = settings
        self.finds_by_sequence = False
        """Accept bundles under other ids, as long as their sequence is right: for logs that lost their header."""
        self._contents: dict[tuple[int, bytes], SegmentContent] = {}

    # --- looking ----------------------------------------------------------------------------------------------------------

    def open(self, disk: Disk, clock: Clock, full: SimDisk | None = None) -> Engine:
        """Open the engine; `full` gets more room if that is what is missing."""
        try:
            engine = Engine.open(disk, DIRECTORY, self.settings, 0, clock, self.homes)
        except DiskError as error:
            if error.errno not in NO_SPACE_ERRNOS or full is None:
                raise
            full.capacity_bytes = None
            engine = Engine.open(disk, DIRECTORY, self.settings, 0, clock, self.homes)
        assert engine.state is EngineState.READY
        return engine

    def survey(self, disk: Disk, engine: Engine) -> Survey:
        """Settle the engine and look at everything in it; nothing is claimed afterwards."""
        doomed: set[int] = set()
        events = settle(engine, doomed)
        segments = {info.segment_seq: self.content(disk, info.segment_seq) for info in engine.segments()}
        deliverable = {name: _claimable(engine, name, events) for name in engine.owed.subscriber_figures()}
        events += settle(engine, doomed)
        failures = [event for event in events if isinstance(event, Failed)]
        assert not failures, failures
        staged = {stage.number for stage in engine.stages if stage.state is not StageState.OPEN}
        missing_logs = [note for note in engine.recovery_notes if "is gone" in note]
        owners = {
            subscriber: engine.registrations.ownership_of(subscriber) or OF_TOPICS_OWNER for subscriber in deliverable
        }
        return Survey(segments, deliverable, events, doomed, staged, missing_logs, owners)

    def content(self, disk: Disk, segment_seq: int) -> SegmentContent:
        """A segment's bundles, each compared with what was pushed under its id."""
        data = read_whole(disk, f"{DIRECTORY}/segments/{segment_seq:016}.qseg", _FILE_BYTES_MAX)
        known = self._contents.get((segment_seq, data))
        if known is None:
            known = self._contents[segment_seq, data] = self._read(segment_seq, data)
        return known

    def _read(self, segment_seq: int, data: bytes) -> SegmentContent:
        reader = SegmentReader(data, segment_seq=segment_seq)
        reader.verify_checksum()
        bundles = [(reader.sequence(index) or 0, reader.bundle(index)) for index in range(reader.bundle_count)]
        for index, (sequence, slots) in enumerate(bundles):
            pushed = self.ledger.bundles.get((segment_seq, index))
            if pushed is None and self.finds_by_sequence:
                pushed = next((b for b in self.ledger.bundles.values() if b.sequence == sequence), None)
            assert pushed is not None or not slots, f"bundle {segment_seq}/{index} was never pushed"
            if pushed is not None:
                assert sequence == pushed.sequence, f"{pushed.id} has sequence {sequence}, not {pushed.sequence}"
                assert not slots or same_slots(slots, pushed.slots), f"{pushed.id} is not what was pushed"
        extension = reader.footer.extension
        assert extension is not None
        return SegmentContent(bundles, (extension.wal_position_start, extension.wal_position_end))

    # --- judging ----------------------------------------------------------------------------------------------------------

    def check(self, survey: Survey, at: int, *, is_kill: bool) -> None:
        """Compare with what a crash at that moment may leave."""
        assert not survey.missing_logs, f"nobody has taken a log away: {survey.missing_logs}"
        promised = list(self.ledger.promised(at, is_kill=is_kill))
        for bundle in promised:
            assert survey.holds(bundle.id), f"{bundle.id}, sequence {bundle.sequence}, was promised and is lost"
        for segment_seq in survey.segments:
            assert not self.ledger.is_deleted(segment_seq, at), f"segment {segment_seq} was deleted and is back"
        self.check_order(survey)
        self._check_positions(survey, at)
        self.ledger.stages.check(self.seen(survey, at), at)
        check_once(self.ledger, survey)
        for subscriber in self.ledger.subscribers():
            self._check_subscriber(survey, subscriber, promised, at)
        assert survey.deliverable.keys() <= self.ledger.subscribers()

    def seen(self, survey: Survey, at: int) -> Seen:
        """What the ledger of stages has to know."""
        return Seen(survey.staged, survey.holds, lambda id_: self.ledger.may_be_deleted(id_[0], at))

    def check_order(self, survey: Survey) -> None:
        """Sequences rise through all segments."""
        ordered = sorted(survey.segments.items())
        sequences = [sequence for _, content in ordered for sequence, _ in content.bundles]
        assert sequences == sorted(set(sequences)), "sequences are out of order"

    def _check_positions(self, survey: Survey, at: int) -> None:
        known = {seq: (start, end) for seq, (start, end, since) in self.ledger.positions.items() if since <= at}
        ranges = sorted((*positions, seq) for seq, positions in known.items())
        for seq, content in survey.segments.items():
            if seq not in known:
                ranges.append((*content.positions, seq))
        ranges.sort()
        for (_, end, seq), (start, _, other) in pairwise(ranges):
            assert end <= start, f"segments {seq} and {other} share log positions {start}..{end}"

    def _check_subscriber(self, survey: Survey, subscriber: str, promised: list[PushedBundle], at: int) -> None:
        subscription, is_open = self.ledger.known(subscriber, at)
        delivered = survey.deliverable.get(subscriber)
        if is_open:
            return
        assert (delivered is None) == (subscription is None), (
            f"subscriber {subscriber} is known: {delivered is not None}"
        )
        if subscription is None or delivered is None:
            return
        assert survey.owners[subscriber] == subscription.ownership, f"{subscriber} belongs to somebody else"
        assert delivered == sorted(delivered), f"{subscriber} gets bundles out of order"
        found = set(delivered)
        resolved = subscription.resolved
        for id_, fact in resolved.items():
            assert fact.durable_at > at or id_ not in found, f"{subscriber} gets {id_} again, resolved durably"
        for bundle in promised:
            found_fact = resolved.get(bundle.id)
            if subscription.owes(bundle) and (found_fact is None or found_fact.done_at > at):
                assert bundle.id in found, f"{subscriber} is owed {bundle.id} and does not get it"
        self._check_announced(survey, subscription, found, at)
        for id_ in found:
            is_right = subscription.owes(self.ledger.bundles[id_]) or id_ in subscription.may_get
            assert is_right, f"{subscriber} gets {id_} from before its start"

    def _check_announced(self, survey: Survey, subscription: Subscription, found: set[BundleId], at: int) -> None:
        """Check that each lost bundle is either still delivered or named in a notice; once the notice is durable, only named."""
        gaps = [e for e in survey.events if isinstance(e, GapFound) and e.subscriber == subscription.subscriber]
        announced = {(gap.segment_seq, gap.bundle_index + n) for gap in gaps for n in range(gap.bundle_count)}
        for id_ in subscription.dropped:
            fact = subscription.resolved[id_]
            if self.ledger.bundles[id_].lost_at <= at or fact.done_at > at:
                continue
            is_announced = id_ in announced
            assert is_announced or (fact.durable_at > at and id_ in found), (
                f"{subscription.subscriber} neither gets {id_} nor is told that it was evicted"
            )

    def check_progress(self, disk: Disk, engine: Engine, survey: Survey, at: int) -> None:
        """The engine takes, seals and delivers new bundles, under numbers that were never used before."""
        segment_used, sequence_used = self.ledger.highest_used(at)
        pushed = [push_plain(engine, number) for number in range(2)]
        settle(engine)
        assert engine.group_commit.acknowledges[0] == pushed[-1][1] + 1 or engine.settings.durability != "wal"
        assert all(id_[0] > segment_used and sequence > sequence_used for id_, sequence, _ in pushed)
        newest = engine.seal_now()
        assert newest == pushed[-1][0][0]
        settle(engine)
        for id_, sequence, slots in pushed:
            content = self._new_content(disk, id_[0])
            assert content.bundles[id_[1]][0] == sequence
            assert same_slots(content.bundles[id_[1]][1], slots)
            self._check_new_positions(content.positions, survey, at)
        for subscriber in survey.deliverable:
            delivered = _claimable(engine, subscriber, [])
            assert delivered == [*survey.deliverable[subscriber], *(id_ for id_, _, _ in pushed)]
        self._check_producers(disk, engine, survey, at)

    def _check_producers(self, disk: Disk, engine: Engine, survey: Survey, at: int) -> None:
        stored = check_producers_go_on(self, engine, survey, at)
        engine.seal_now()
        settle(engine)
        for bundle in stored:
            sequence, slots = self._new_content(disk, bundle.id[0]).bundles[bundle.id[1]]
            assert sequence == bundle.sequence
            assert same_slots(slots, bundle.slots), f"{bundle.id} is not what its producer pushed"

    def settle(self, engine: Engine) -> None:
        """Do what is due."""
        settle(engine)

    def make_room(self, engine: Engine, span_bytes: int) -> None:
        """Do what is due until a push of that size can be taken."""
        if not engine.intake.can_stage(span_bytes):
            settle(engine)
        assert engine.intake.can_stage(span_bytes)

    def _new_content(self, disk: Disk, segment_seq: int) -> SegmentContent:
        data = read_whole(disk, f"{DIRECTORY}/segments/{segment_seq:016}.qseg", _FILE_BYTES_MAX)
        reader = SegmentReader(data)
        extension = reader.footer.extension
        assert extension is not None
        bundles = [(reader.sequence(index) or 0, reader.bundle(index)) for index in range(reader.bundle_count)]
        return SegmentContent(bundles, (extension.wal_position_start, extension.wal_position_end))

    def _check_new_positions(self, new: tuple[int, int], survey: Survey, at: int) -> None:
        used = [end for _, end, since in self.ledger.positions.values() if since <= at]
        used += [content.positions[1] for content in survey.segments.values()]
        assert new[0] >= max(used, default=0), f"log positions {new} were used up to {max(used)}"


def push_plain(engine: Engine, number: int) -> tuple[BundleId, int, Slots]:
    """Push one bundle, which must be possible at once or after what is due; returns its id, sequence and slots."""
    from random import Random

    from tests.sim.bundles import Producer

    slots = plain(number, Random(number))
    memory, push, schemas = Producer(engine.topic).lay_out([slots])
    if not engine.intake.can_stage(len(memory)):
        settle(engine)
    (run,) = engine.intake.stage(memory, push, schemas)
    engine.write()
    return (run.segment_seq, run.bundle_index), run.sequence, slots


def _claimable(engine: Engine, subscriber: str, told: list[Event]) -> list[BundleId]:
    """Everything that the subscriber would get now; the gaps that it would be told of are added to `told`."""
    owner = object()
    found: list[BundleId] = []
    # A claim stops in front of a gap notice, which is told first.
    while (granted := engine.claims.claim(subscriber, owner, _EVERYTHING)) or (
        notice := engine.claims.take_gap(subscriber, owner)
    ):
        found += [(segment_seq, index) for segment_seq, indexes, *_ in granted for index in indexes]
        if not granted and notice is not None:
            told.append(GapFound(subscriber, *notice.position, notice.bundle_count, notice.reason))
    engine.claims.release(owner)
    return found


__all__ = ["DIRECTORY", "DiskError", "ManualClock", "Oracle", "Survey", "settle"]
