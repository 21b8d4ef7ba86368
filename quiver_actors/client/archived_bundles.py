"""Some bundles of one archived segment, as a client has them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from quiver_actors.client.archived_reader import ArchivedReader
from quiver_actors.client.projection import Projection
from quiver_actors.client.segments import MappedSegment
from quiver_actors.client.slots import TopicSlots
from quiver_actors.errors import QuiverError
from quiver_actors.store.segment.runs import Run


class ArchivedBundles(MappedSegment):
    """Bundles that are fetched when something of them is first asked for. A program that must not wait then has them fetched before,
    in a thread."""

    __slots__ = ("_failures",)

    def __init__(
        self,
        open_reader: Callable[[], ArchivedReader],
        segment_seq: int,
        slots: TopicSlots,
        core: int,
        projection: Projection,
    ) -> None:
        """Arguments as of `MappedSegment`."""
        super().__init__(open_reader, segment_seq, slots, core, projection)
        self._failures: dict[int, Exception] = {}

    def fetch(self, indexes: Iterable[int]) -> None:
        """Fetch bundles. Waits, and raises nothing: `check` raises for each of them what failed, until it is fetched again."""
        for index in indexes:
            self._failures.pop(index, None)
            try:
                self._reader_of_archive().fetch(index)
            except (QuiverError, IndexError) as error:
                self._failures[index] = error

    def check(self, index: int) -> None:
        """Fetch and prove a bundle; see `ArchivedReader.check`. Does not wait for one that was fetched."""
        failure = self._failures.get(index)
        if failure is not None:
            raise failure
        super().check(index)

    def _reader_of_archive(self) -> ArchivedReader:
        reader = self.reader
        assert isinstance(reader, ArchivedReader), "it opens nothing else"
        return reader

    def runs(self, indexes: Sequence[int]) -> list[Run]:
        """Return no runs: archived bundles are read one by one."""
        return []
