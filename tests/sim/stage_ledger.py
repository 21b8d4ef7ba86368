"""What the outside world knows of staged bundles, and since when: what was prepared, decided, published, dropped. See `ledger`.

Demanded of every moment
- What was prepared is there until its publish or drop was wanted, through every crash; what nobody asked to prepare is gone after one.
- Before its publish was wanted nothing of a stage is visible; afterwards all of the stages of one publish or none, each bundle once.
- What was said to be published is visible, what was said to be dropped is gone.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field

from tests.sim.bundles import Slots

NEVER = 1 << 62
BundleId = tuple[int, int]
FACTS = ("prepare_wanted", "prepared", "publish_wanted", "published", "drop_wanted", "dropped")


@dataclass(slots=True)
class StagedBundle:
    slots: Slots
    time_ns: int


@dataclass(slots=True)
class StageLife:
    """One stage from its begin, or from a crash, to the next crash. All facts are numbers of disk calls."""

    number: int
    txn_id: str
    since: int
    until: int = NEVER
    bundles: list[StagedBundle] = field(default_factory=list)
    placements: list[list[BundleId]] = field(default_factory=list)
    """Where it becomes visible: at most one of them, as a publish that a crash undid takes other numbers the next time."""
    prepare_wanted: int = NEVER
    prepared: int = NEVER
    publish_wanted: int = NEVER
    published: int = NEVER
    drop_wanted: int = NEVER
    dropped: int = NEVER
    publish: tuple[int, int] | None = None
    """The start of the engine and the ticket that it gave (each start counts anew): those of one publish become visible together."""

    @property
    def is_undecided(self) -> bool:
        """Prepared, and neither to be published nor to be dropped."""
        return self.prepared != NEVER and self.publish_wanted == self.drop_wanted == NEVER

    def at(self, at: int) -> set[str]:
        """The facts that are true then."""
        return {name for name in FACTS if getattr(self, name) <= at}


@dataclass(slots=True)
class Seen:
    """State of an opened engine, as far as stages go."""

    staged: Collection[int]
    holds: Callable[[BundleId], bool]
    may_be_deleted: Callable[[BundleId], bool]

    def visibility(self, life: StageLife) -> tuple[int, int]:
        """How many placements show something, and how many bundles are missing in those, beside deleted ones."""
        shown = missing = 0
        for ids in life.placements:
            held = [id_ for id_ in ids if self.holds(id_)]
            gone = [id_ for id_ in ids if self.may_be_deleted(id_)]
            if held or gone:
                shown += 1
                missing += sum(not self.holds(id_) and id_ not in gone for id_ in ids)
        return shown, missing


class StageLedger:
    def __init__(self) -> None:
        self.lives: list[StageLife] = []

    def live(self) -> Iterator[StageLife]:
        """Yield the stages that exist now."""
        return (life for life in self.lives if life.until == NEVER)

    def find(self, number: int) -> StageLife | None:
        return next((life for life in self.live() if life.number == number), None)

    def times(self) -> Iterator[int]:
        """Yield the times when something became true."""
        for life in self.lives:
            yield from (life.since, life.until, *(getattr(life, name) for name in FACTS))

    def check(self, seen: Seen, at: int) -> None:
        """Compare with what a crash at that moment may leave."""
        lives = [life for life in self.lives if life.since <= at < life.until]
        by_publish: dict[tuple[int, int], set[bool]] = {}
        for life in lives:
            is_visible = self._check_life(seen, life, life.at(at))
            if life.publish_wanted <= at and life.publish:
                by_publish.setdefault(life.publish, set()).add(is_visible)
        assert all(len(shown) == 1 for shown in by_publish.values()), "half of a publish is visible"
        known = {life.number for life in lives}
        assert not set(seen.staged) - known, f"stages {set(seen.staged) - known} of nobody"

    def _check_life(self, seen: Seen, life: StageLife, facts: set[str]) -> bool:
        """Returns whether it is visible."""
        name, is_there = f"stage {life.number} of {life.txn_id}", life.number in seen.staged
        shown, missing = seen.visibility(life)
        assert shown <= 1, f"{name} is visible {shown} times"
        assert not missing, f"{missing} bundles of {name} are missing, the others are visible"
        assert not (shown and is_there), f"{name} is visible and waits to be published"
        assert not shown or "publish_wanted" in facts, f"{name} is visible, and nobody published it"
        if "prepare_wanted" not in facts:
            assert not is_there, f"{name} is there, and nobody prepared it"
        if "prepared" in facts and not facts & {"publish_wanted", "drop_wanted"}:
            assert is_there, f"{name} was prepared and is lost"
        if "prepared" in facts and "publish_wanted" in facts:
            assert is_there or shown, f"{name} was to be published and is lost"
        if facts & {"published", "dropped"}:
            assert not is_there, f"{name} came back"
        if "published" in facts:
            assert shown, f"{name} was published and is lost"
        return bool(shown)

    def accept(self, seen: Seen, now: int) -> None:
        """After a crash, or at a new start: what is there goes on, the rest is what it has become for ever."""
        for life in list(self.live()):
            life.until = now
            shown, _ = seen.visibility(life)
            after = StageLife(life.number, life.txn_id, now, NEVER, life.bundles, life.placements)
            if life.number in seen.staged:
                after.prepare_wanted = after.prepared = now
            elif shown:
                after.prepare_wanted = after.prepared = after.publish_wanted = after.published = now
            elif life.prepared != NEVER:
                after.prepare_wanted = after.prepared = after.drop_wanted = after.dropped = now
            else:
                continue
            self.lives.append(after)
