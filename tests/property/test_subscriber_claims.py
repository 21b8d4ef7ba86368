"""A subscriber against a plain model: a dict of lists, searched from the start for every claim.

Random claims, outcomes, releases, delays, seals, flushes, lost and deleted segments, and crashes that come back from the last
flushed progress file. The rules that hold: oldest first, nobody gets what is held or resolved, only the holder resolves, exactly
the unresolved is claimable after a restart, the watermark is exact, and a file may be deleted only when no crash can miss it.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass, field

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from quiver_actors.store.subscriber import losses
from quiver_actors.store.subscriber.progress import decode_progress, encode_progress
from tests.support.consumers import RememberingState as SubscriberState

OWNERS = ("alice", "bob", "carol")
RESOLVED, PENDING = "resolved", "pending"
#: Index by index and as runs: both ways through `BundleStates` are taken.
INDEXES = st.lists(st.integers(-1, 90), max_size=40) | st.builds(
    lambda first, size: list(range(first, first + size)), st.integers(0, 80), st.integers(0, 80)
)


@dataclass
class Model:
    """Bundle states by segment: `pending`, `resolved`, an owner's name, or the time at which a deferred one is due."""

    bundles: dict[int, list[str | int]] = field(default_factory=dict)
    next_segment_seq: int = 0
    start: tuple[int, int] = (0, 0)

    def seal(self, segment_seq: int, bundle_count: int) -> None:
        begins_before = [(segment_seq, index) < self.start for index in range(bundle_count)]
        self.bundles[segment_seq] = [RESOLVED if before else PENDING for before in begins_before]
        self.next_segment_seq = segment_seq + 1

    def pending(self) -> list[tuple[int, int]]:
        return [
            (segment_seq, index)
            for segment_seq in sorted(self.bundles)
            for index, state in enumerate(self.bundles[segment_seq])
            if state == PENDING
        ]

    def unresolved_segments(self) -> list[int]:
        return sorted(seq for seq, states in self.bundles.items() if any(state != RESOLVED for state in states))

    def count(self, *wanted: str) -> int:
        return sum(state in wanted for states in self.bundles.values() for state in states)

    def after_restart(self) -> Model:
        """Claims and delays are not durable."""
        durable = copy.deepcopy(self)
        for states in durable.bundles.values():
            states[:] = [RESOLVED if state == RESOLVED else PENDING for state in states]
        return durable


class SubscriberMachine(RuleBasedStateMachine):
    """Runs each operation on the model and on the real thing, and compares."""

    def __init__(self) -> None:
        super().__init__()
        self.model = Model()
        self.state = SubscriberState("sub")
        self.now_ns = 0
        self.files: set[int] = set()
        self.flushed_file = b""
        self.flushed_model = Model()

    @initialize(segment_seq=st.integers(0, 3), bundle_index=st.integers(0, 100))
    def start(self, segment_seq: int, bundle_index: int) -> None:
        self.model.start = (segment_seq, bundle_index)
        self.state.progress.start_at(segment_seq, bundle_index)
        self.flush()

    @rule(bundle_count=st.integers(1, 80), skipped=st.sampled_from([0, 0, 0, 1, 5]))
    def seal(self, bundle_count: int, skipped: int) -> None:
        segment_seq = self.model.next_segment_seq + skipped
        self.model.seal(segment_seq, bundle_count)
        self.files.add(segment_seq)
        self.state.add_segment(segment_seq, bundle_count)

    @rule(owner=st.sampled_from(OWNERS), bundles=st.integers(0, 50))
    def claim(self, owner: str, bundles: int) -> None:
        expected = self.model.pending()[:bundles]
        granted = self.state.claim(owner, bundles)
        assert [(seq, index) for seq, indexes in granted for index in indexes] == expected
        assert len({seq for seq, _ in granted}) == len(granted)
        for segment_seq, index in expected:
            self.model.bundles[segment_seq][index] = owner

    @precondition(lambda self: self.model.bundles)
    @rule(
        owner=st.sampled_from(OWNERS),
        which=st.integers(0, 100),
        indexes=INDEXES,
        outcome=st.sampled_from(["ack", "ack", "reject", "defer"]),
        delay_ns=st.sampled_from([0, 0, 10, 25]),
    )
    def resolve(self, owner: str, which: int, indexes: list[int], outcome: str, delay_ns: int) -> None:
        segment_seq = sorted(self.model.bundles)[which % len(self.model.bundles)]
        given_back = PENDING if not delay_ns else self.now_ns + delay_ns
        refused = self.state.resolve(owner, segment_seq, outcome, indexes, delay_ns, self.now_ns)
        assert refused == self._resolve_in_model(
            owner, segment_seq, indexes, given_back if outcome == "defer" else RESOLVED
        )

    def _resolve_in_model(self, owner: str, segment_seq: int, indexes: list[int], target: str | int) -> list[int]:
        states = self.model.bundles[segment_seq]
        refused = []
        for index in indexes:
            if 0 <= index < len(states) and states[index] == owner:
                states[index] = target
            else:
                refused.append(index)
        return refused

    @precondition(lambda self: self.model.count(*OWNERS))
    @rule(owner=st.sampled_from(OWNERS), outcome=st.sampled_from(["ack", "reject"]))
    def finish_everything_held(self, owner: str, outcome: str) -> None:
        for segment_seq, states in self.model.bundles.items():
            held = [index for index, state in enumerate(states) if state == owner]
            assert self.state.resolve(owner, segment_seq, outcome, held, 0, self.now_ns) == []
            self._resolve_in_model(owner, segment_seq, held, RESOLVED)

    @rule(owner=st.sampled_from(OWNERS))
    def release(self, owner: str) -> None:
        assert self.state.release(owner) == self.model.count(owner)
        for states in self.model.bundles.values():
            states[:] = [PENDING if state == owner else state for state in states]

    @rule(passed_ns=st.integers(0, 30))
    def time_passes(self, passed_ns: int) -> None:
        self.now_ns += passed_ns
        due = 0
        for states in self.model.bundles.values():
            for index, state in enumerate(states):
                if isinstance(state, int) and state <= self.now_ns:
                    states[index] = PENDING
                    due += 1
        assert self.state.due(self.now_ns) == (due > 0)

    @precondition(lambda self: self.model.bundles)
    @rule(which=st.integers(0, 100))
    def segment_is_found_damaged(self, which: int) -> None:
        segment_seq = sorted(self.model.bundles)[which % len(self.model.bundles)]
        states = self.model.bundles[segment_seq]
        lost = [index for index, state in enumerate(states) if state != RESOLVED]
        runs = losses.forget_segment(self.state, segment_seq)
        assert [first + index for first, count in runs for index in range(count)] == lost
        states[:] = [RESOLVED] * len(states)

    @rule()
    def delete_what_may_go(self) -> None:
        asked = sorted(self.files)
        complete = self.state.progress.completed.durable(asked)
        assert complete == [seq for seq in asked if self.state.progress.completed.durable([seq])], (
            "asked for together as one by one"
        )
        for segment_seq in complete:
            durable = self.flushed_model.bundles.get(segment_seq)
            assert durable is None or set(durable) == {RESOLVED}, "a crash now would miss the file"
            assert losses.forget_segment(self.state, segment_seq, file_is_gone=True) == []
            self.files.discard(segment_seq)

    @rule()
    def flush(self) -> None:
        version = self.state.progress.changes.version
        self.flushed_file = encode_progress(self.state.progress.snapshot(self.model.next_segment_seq))
        self.flushed_model = self.model.after_restart()
        self.state.progress.completed.mark_flushed(version)

    @rule()
    def crash(self) -> None:
        """Back to the last flush: what was sealed since is on disk all the same, and nobody has resolved it."""
        model = copy.deepcopy(self.flushed_model)
        for segment_seq in sorted(self.model.bundles):
            if segment_seq not in model.bundles:
                model.seal(segment_seq, len(self.model.bundles[segment_seq]))
        self.model = model
        self.state = SubscriberState("sub")
        self.state.progress.load(decode_progress(self.flushed_file))
        for segment_seq in sorted(self.files):
            self.state.add_segment(segment_seq, len(model.bundles[segment_seq]))

    @invariant()
    def counts_agree(self) -> None:
        unresolved = sum(len(states) for states in self.model.bundles.values()) - self.model.count(RESOLVED)
        assert self.state.progress.unresolved_count == unresolved
        assert self.state.leases.claimed_count == self.model.count(*OWNERS)
        assert self.state.pending_count == unresolved - self.model.count(*OWNERS)
        assert self.state.claimable_count == len(self.model.pending())

    @invariant()
    def oldest_is_exact(self) -> None:
        incomplete = self.model.unresolved_segments()
        floor = max(self.model.start[0], self.model.next_segment_seq)
        assert self.state.progress.watermark(self.model.next_segment_seq) == (incomplete[0] if incomplete else floor)
        expected = None
        if incomplete:
            states = self.model.bundles[incomplete[0]]
            expected = incomplete[0], next(index for index, state in enumerate(states) if state != RESOLVED)
        assert self.state.progress.oldest_unresolved() == expected

    @invariant()
    def completeness_agrees(self) -> None:
        incomplete = self.model.unresolved_segments()
        for segment_seq in self.files:
            assert self.state.progress.is_complete(segment_seq) == (segment_seq not in incomplete)

    @invariant()
    def next_due_is_exact(self) -> None:
        times = [state for states in self.model.bundles.values() for state in states if isinstance(state, int)]
        next_due_ns = self.state.next_due_ns()
        # A forgotten segment may leave an early alarm behind, never a late one.
        assert not times or (next_due_ns is not None and next_due_ns <= min(times))


TestSubscriber = SubscriberMachine.TestCase
TestSubscriber.settings = settings(
    database=None, deadline=None, derandomize=True, max_examples=150, stateful_step_count=60
)
