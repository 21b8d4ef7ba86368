"""The receipts of one call, made when somebody looks at them.

A worker acknowledges bundles by the run; most callers only want to know that all of them are stored. Three objects for every
bundle were 7 % of what a push of small bundles cost its producer (docs/performance.md).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Collection, Iterator, Sequence
from functools import partial
from itertools import chain, repeat
from typing import overload

from quiver_actors.base.model import BundleId, Durability, Receipt
from quiver_actors.base.protocol.messages import AckRun

# Without the constructors' Python code: receipts are made by the ten thousand.
_new_id: Callable[[tuple[object, ...]], BundleId] = partial(tuple.__new__, BundleId)
_new_receipt: Callable[[tuple[object, ...]], Receipt] = partial(tuple.__new__, Receipt)

_Run = tuple[int, AckRun, Durability]
"""Core that stored the bundles, place of the bundles, and their durability."""


class Receipts(Sequence[Receipt]):
    """The receipts that `push_many` returns: one `Receipt` a bundle, in the order of the bundles.

    Behaves as a list that cannot be changed: length, index, slice (a list), iteration, equality with lists, pickle. Memory: that of the
    acknowledgements, whatever the number of bundles.
    """

    __slots__ = ("_count", "_firsts", "_runs", "archives_as", "topic")

    def __init__(self, topic: str) -> None:
        self.topic = topic
        """The topic that was pushed to."""
        self.archives_as: dict[int, str] = {}
        """Cores whose bundles the call waits for until they are in the archive, and the incarnations of their directories; empty: not asked
        yet. Only for the call itself."""
        self._runs: list[_Run] = []
        self._firsts: list[int] = []
        """Place of each run's first bundle."""
        self._count = 0

    def add(self, core: int, run: AckRun, durability: Durability) -> None:
        """The next bundles of the call are stored. Only by the call itself, before anybody else has it."""
        self._runs.append((core, run, durability))
        self._firsts.append(self._count)
        self._count += run.count

    def places(self) -> dict[int, tuple[tuple[int, int, int], ...]]:
        """Where the bundles are, by core, in the order of their segments: segment, first bundle, the one behind the last."""
        found: dict[int, set[tuple[int, int, int]]] = {}
        for core, run, _ in self._runs:
            found.setdefault(core, set()).add((run.segment_seq, run.bundle_index, run.bundle_index + run.count))
        return {core: tuple(sorted(places)) for core, places in found.items()}

    def note_archived(self, cores: Collection[int]) -> None:
        """The bundles of these cores are in the archive. Only by the call itself, before anybody else has it."""
        self._runs = [
            (core, run, Durability.ARCHIVED if core in cores else durability) for core, run, durability in self._runs
        ]

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, index: int) -> Receipt: ...

    @overload
    def __getitem__(self, index: slice) -> list[Receipt]: ...

    def __getitem__(self, index: int | slice) -> Receipt | list[Receipt]:
        # A range knows what an index or a slice means, and what is out of range.
        try:
            wanted = range(self._count)[index]
        except IndexError:
            raise IndexError(f"there is no receipt {index}: the push has {self._count}") from None
        return self._at(wanted) if isinstance(wanted, int) else [self._at(place) for place in wanted]

    def __iter__(self) -> Iterator[Receipt]:
        return chain.from_iterable(map(self._receipts_of, self._runs))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Receipts | list):
            return NotImplemented
        return len(self) == len(other) and all(mine == theirs for mine, theirs in zip(self, other, strict=True))

    __hash__ = None  # type: ignore[assignment]  # as a list, which it compares equal to

    def __repr__(self) -> str:
        return repr(list(self))

    def _at(self, place: int) -> Receipt:
        number = bisect_right(self._firsts, place) - 1
        core, run, durability = self._runs[number]
        behind = place - self._firsts[number]
        bundle_id = BundleId(self.topic, core, run.segment_seq, run.bundle_index + behind)
        return Receipt(bundle_id, run.sequence + behind, durability, run.is_duplicate)

    def _receipts_of(self, of: _Run) -> Iterator[Receipt]:
        core, run, durability = of
        places = range(run.bundle_index, run.bundle_index + run.count)
        sequences = range(run.sequence, run.sequence + run.count)
        # zip ends with the places: the others never do, or are as many.
        ids = map(_new_id, zip(repeat(self.topic), repeat(core), repeat(run.segment_seq), places, strict=False))
        return map(_new_receipt, zip(ids, sequences, repeat(durability), repeat(run.is_duplicate), strict=False))
