"""The subscribers of a run: they register and go, claim bundles and resolve them, and the ledger hears what each of them is owed."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING

from quiver_actors.base.rights import Ownership
from quiver_actors.base.units import MILLISECOND_NS
from quiver_actors.errors import DiskError, StorageUnavailable
from quiver_actors.store.engine.events import Event
from quiver_actors.store.jobs.commits import LoneCommit
from tests.sim.ledger import NEVER, BundleId, PushedBundle, Subscription

if TYPE_CHECKING:
    from tests.sim.world import World

SUBSCRIBERS = ("ann", "ben", "cat")
OWNERS = (Ownership(), Ownership(1001), Ownership(1002, (1001, 1003)))


class Subscribing:
    """Owner: the run."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._claimed: dict[tuple[str, BundleId], object] = {}
        self._tokens: dict[tuple[str, BundleId], int] = {}
        self._owners: list[object] = []
        # A third of the runs have one subscriber at most, which may get bundles the short way.
        self._names = world.random.choice((SUBSCRIBERS[:1], SUBSCRIBERS, SUBSCRIBERS))
        self.passed_on = 0
        """How many bundles of lone pushes were shown and claimed at once."""

    def claim(self) -> None:
        subscription = self._world.ledger.live(self._world.random.choice(SUBSCRIBERS))
        if subscription is not None:
            self._claim(subscription, self._world.random.choice((1, 4, 20)))

    def catch_up(self) -> bool:
        """If there is one subscriber alone, it claims all that it can. Returns whether that is so."""
        known = list(self._world.engine.progress.registry.states)
        subscription = self._world.ledger.live(known[0]) if len(known) == 1 else None
        if subscription is not None:
            self._claim(subscription, 1 << 20)
        return subscription is not None

    def _claim(self, subscription: Subscription, bundles: int) -> None:
        owner = object()
        self._owners.append(owner)
        for segment_seq, indexes, token, *_ in self._world.engine.claims.claim(subscription.subscriber, owner, bundles):
            self._note_claimed(subscription, owner, segment_seq, indexes, token)

    def _note_claimed(
        self, subscription: Subscription, owner: object, segment_seq: int, indexes: Sequence[int], token: int
    ) -> None:
        subscriber = subscription.subscriber
        for id_ in [(segment_seq, index) for index in indexes]:
            bundle = self._world.ledger.bundles[id_]
            is_right = subscription.owes(bundle) or id_ in subscription.may_get
            assert is_right, f"{subscriber} gets {id_}, which it is not owed"
            assert id_ not in subscription.resolved, f"{subscriber} gets {id_} again"
            assert (subscriber, id_) not in self._claimed, f"{id_} is claimed twice"
            self._claimed[subscriber, id_] = owner
            self._tokens[subscriber, id_] = token

    def finish_lone(self, commit: LoneCommit) -> list[Event]:
        """Take back the commit of a push that travelled alone: its bundle goes at once to whoever waits for it, if that is one alone."""
        engine, log, owner = self._world.engine, commit.steps[0].log, object()
        engine.group_commit.finish_lone()
        for subscriber in engine.progress.registry.states:
            subscription = self._world.ledger.live(subscriber)
            assert subscription is not None
            live = engine.readable_end.show_to(log, subscriber, owner)
            if live is not None:
                self.passed_on += 1
                self._owners.append(owner)
                self._note_claimed(subscription, owner, live.segment_seq, range(live.start, live.stop), live.token)
                return []
        return engine.readable_end.advance()

    def resolve(self) -> None:
        held = list(self._claimed.items())
        if not held:
            return
        (subscriber, (segment_seq, bundle_index)), owner = self._world.random.choice(held)
        token = self._tokens[subscriber, (segment_seq, bundle_index)]
        mine = [i for (s, (q, i)), o in held if s == subscriber and q == segment_seq and o is owner]
        mine = [i for i in mine if self._tokens[subscriber, (segment_seq, i)] == token]
        chosen = sorted(self._world.random.sample(mine, self._world.random.randint(1, len(mine))))
        outcome = self._world.random.choice(("ack", "ack", "ack", "reject", "defer"))
        delay_ns = self._world.random.choice((0, 5 * MILLISECOND_NS))
        refused = self._world.engine.claims.resolve(subscriber, owner, segment_seq, token, outcome, chosen, delay_ns)
        assert not refused, f"{owner} does not hold {refused} of {segment_seq}"
        for index in chosen:
            del self._claimed[subscriber, (segment_seq, index)]
        if outcome == "defer":
            return
        subscription = self._world.ledger.live(subscriber)
        assert subscription is not None
        for index in chosen:
            subscription.resolved[segment_seq, index] = self._world.ticketed(self._world.engine.progress.ticket)

    def follow(self) -> None:
        """Everybody acknowledges so closely together that a flush has the progress of several: from the second one on in the journal."""
        for _ in range(3):
            for _ in SUBSCRIBERS:
                self.claim()
                self.resolve()
            self._world.clock.now_ns += self._world.settings.progress_flush_interval_ns
            self._world.random.choice((self._world.jobs.finish_all, self._world.jobs.let_run))()
            if self._world.has_ended:
                return

    def release(self) -> None:
        if self._owners:
            owner = self._owners.pop(self._world.random.randrange(len(self._owners)))
            self._world.observe(self._world.engine.claims.release(owner))
            self._claimed = {key: holder for key, holder in self._claimed.items() if holder is not owner}

    def register_all(self) -> None:
        self._names = SUBSCRIBERS
        while len({s.subscriber for s in self._world.ledger.subscriptions}) < len(SUBSCRIBERS):
            self.register()

    def register(self) -> None:
        if self._world.staging.is_publishing:
            return
        subscriber = self._world.random.choice(self._names)
        start, wants = self._any_start()
        is_known = self._world.ledger.live(subscriber) is not None
        next_sequence = 1 + max(
            (b.sequence for b in self._world.ledger.bundles.values() if b.lost_at == NEVER), default=-1
        )
        try:
            ownership = OWNERS[len(self._world.ledger.subscriptions) % len(OWNERS)]
            ticket = self._world.engine.registrations.register(subscriber, start, ownership)
        except (DiskError, StorageUnavailable):  # the times of old bundles are read for it
            assert self._world.has_faults
            return
        if is_known:
            return
        behind = [b for b in self._world.ledger.bundles.values() if b.lost_at == NEVER and wants(b)]
        gone = {seq for seq in {b.id[0] for b in behind} if self._world.is_doomed(seq)}
        given_up = frozenset(b.id for b in behind if b.id[0] in self._world.ledger.drops)
        owed = frozenset(b.id for b in behind if b.id[0] not in gone) - given_up
        self._world.ledger.subscriptions.append(
            Subscription(
                subscriber, self._world.ticketed(ticket), next_sequence, owed, may_get=given_up, ownership=ownership
            )
        )

    def _any_start(self) -> tuple[str, Callable[[PushedBundle], bool]]:
        """One of the places where a subscriber may begin, and which of the bundles so far lie behind it."""
        kind = self._world.random.choice(("earliest", "latest", "time", "bundle"))
        if kind in ("earliest", "latest") or not self._world.ledger.bundles:
            return ("latest", lambda bundle: False) if kind == "latest" else ("earliest", lambda bundle: True)
        first = self._world.random.choice(list(self._world.ledger.bundles.values()))
        if kind == "time":
            return f"time:{first.time_ns}", lambda bundle: bundle.time_ns >= first.time_ns
        return f"bundle:0/{first.id[0]}/{first.id[1]}", lambda bundle: bundle.id >= first.id

    def unregister(self) -> None:
        subscriber = self._world.random.choice(SUBSCRIBERS)
        subscription = self._world.ledger.live(subscriber)
        if subscription is not None:
            subscription.ended = self._world.ticketed(self._world.engine.registrations.unregister(subscriber)[0])
            self._claimed = {key: owner for key, owner in self._claimed.items() if key[0] != subscriber}

    def release_all(self) -> None:
        """Nobody holds a claim any more."""
        while self._owners:
            self.release()

    def end_claims(self) -> None:
        """The engine is told that all owners are gone."""
        for owner in self._owners:
            self._world.engine.claims.release(owner)
        self.forget()

    def forget(self) -> None:
        """All claims went with the engine that gave them."""
        self._claimed.clear()

    def lose(self, segment_seqs: Collection[int]) -> None:
        """Claims on these segments are over."""
        self._claimed = {key: owner for key, owner in self._claimed.items() if key[1][0] not in segment_seqs}
