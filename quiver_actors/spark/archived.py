"""The archives of nodes in an object store, as nodes that can only be read. No node needs to run.

Kept per process: the blocks that were fetched serve later tasks too.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NoReturn, TypeVar

import pyarrow as pa

from quiver_actors.archive.reading.archive import Archive, nodes_at, open_archive
from quiver_actors.errors import UnknownTopic, UsageError
from quiver_actors.flight.contract import (
    Acknowledge,
    AskSlotRows,
    AskWeights,
    ConfirmGap,
    Contents,
    CoreContents,
    DropRun,
    Look,
    Node,
    ReadTicket,
    Schemas,
    SlotRows,
    Weights,
    schema_of,
)
from quiver_actors.flight.rows import read_rows
from quiver_actors.flight.stored import stored_rows, stored_schemas, stored_weights

T = TypeVar("T")

_sets: dict[tuple[int, str], ArchivedNodes] = {}


def archived_nodes(url: str) -> ArchivedNodes:
    """The archives at a URL, as this process knows them."""
    return _sets.setdefault((os.getpid(), url), ArchivedNodes(url))


class ArchivedNodes:
    """See `read_nodes.ReadNodes`."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._nodes: dict[str, ArchivedNode] = {}

    def get(self, name: str, location: str | None = None) -> ArchivedNode:
        """The archive of one node. Raises UsageError: there is none; and as `open_archive`."""
        found = self._nodes.get(name)
        if found is None:
            found = self._nodes[name] = ArchivedNode(open_archive(self._url, node=name))
        return found

    def location(self, name: str) -> str | None:
        """Return None: every host finds an archive by its URL."""

    def ask(self, names: Iterable[str], question: Callable[[Node], T]) -> dict[str, T]:
        """Put a question to some archives."""
        return {name: question(self.get(name)) for name in sorted(names)}

    def ask_all(self, question: Callable[[Node], T]) -> dict[str, T]:
        """Put a question to all archives; those that know no such topic are left out.

        Raises:
            UsageError: there is no archive.
            UnknownTopic: none of them knows the topic.
        """
        answers: dict[str, T] = {}
        unknown: UnknownTopic | None = None
        for name in nodes_at(self._url):
            try:
                answers[name] = question(self.get(name))
            except UnknownTopic as error:
                unknown = error
        if unknown is not None and not answers:
            raise unknown
        return answers


class ArchivedNode:
    """The archive of one node behind the interface of a node."""

    def __init__(self, archive: Archive) -> None:
        self._archive = archive

    @property
    def name(self) -> str:
        """Name of the node whose archive it is."""
        return self._archive.node

    def look(self, request: Look) -> Contents:
        """Return what is archived of a topic by now; nothing can be flushed or held."""
        self._archive.refresh()
        cores = [CoreContents(core, infos) for core, infos in self._archive.segments(request.topic).items()]
        return Contents(self.name, self._archive.topics()[request.topic].slots, cores)

    def schemas(self, topic: str, *, archive: bool = False) -> Schemas:
        """Return each distinct schema of the archived segments."""
        return stored_schemas(self._archive, topic)

    def slot_rows(self, request: AskSlotRows) -> SlotRows:
        """Add up the rows of each slot. Segments of which nothing is archived are not named: whoever reads them says so."""
        archived = {
            core: {info.segment_seq for info in infos if info.size_bytes}
            for core, infos in self._archive.segments(request.topic).items()
        }
        named = {core: [seq for seq in seqs if seq in archived[core]] for core, seqs in request.segments.items()}
        return stored_rows(self._archive, AskSlotRows(request.topic, named, request.ranges))

    def weights(self, request: AskWeights) -> Weights:
        """Read rows, bytes and times of the bundles of one segment."""
        return stored_weights(self._archive, request)

    def read(self, ticket: ReadTicket) -> Iterator[pa.RecordBatch]:
        """Yield the rows of the ticket's ranges; only the blocks of its slots and columns are fetched."""
        self._archive.refresh()
        return read_rows(
            self._archive,
            self.name,
            ticket.topic,
            ticket.slots,
            ticket.ranges,
            schema_of(ticket.schema),
            skip_missing=ticket.skip_missing,
            required=ticket.required,
        )

    def acknowledge(self, request: Acknowledge) -> None:
        """Raise UsageError: an archive can only be read."""
        self._refuse()

    def confirm_gap(self, request: ConfirmGap) -> None:
        """Raise UsageError: an archive can only be read."""
        self._refuse()

    def publish(self, tokens: Sequence[str]) -> None:
        """Raise UsageError: an archive can only be read."""
        self._refuse()

    def drop_run(self, request: DropRun) -> None:
        """Raise UsageError: an archive can only be read."""
        self._refuse()

    def _refuse(self) -> NoReturn:
        raise UsageError(f"{self._archive.url} is an archive: it can only be read")
