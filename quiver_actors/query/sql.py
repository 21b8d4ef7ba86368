"""SQL over topics: finds the topics that a statement names, and the table that each of its names stands for.

A table is `topic.slot`, or `topic` alone where it has one slot. `quiver.topics`, `quiver.segments`, `quiver.subscribers` and `quiver.gaps`
describe the node. This module parses no statement: it prepares every table that the text may name, and the engine
uses those that it needs.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from quiver_actors.base.protocol.messages import SegmentInfo, SubscriberInfo, TopicInfo
from quiver_actors.errors import UsageError
from quiver_actors.query.dataset import dataset_of
from quiver_actors.query.engines import Table
from quiver_actors.query.node_tables import NODE_SCHEMA, node_tables
from quiver_actors.query.rows import METADATA
from quiver_actors.query.schemas import slots_of
from quiver_actors.query.snapshot import Snapshot, names_of
from quiver_actors.query.span import Span


class Material(NamedTuple):
    """All data that answers a statement, collected before the statement runs."""

    topics: Mapping[str, TopicInfo]
    snapshots: Mapping[str, Snapshot]
    """The stored data of the topics that the statement names."""
    segments: Mapping[str, Mapping[int, list[SegmentInfo]]] = {}
    """All segments by topic and core; empty where the statement does not ask about them."""
    subscribers: Mapping[str, Mapping[int, list[SubscriberInfo]]] = {}
    span: Span = Span()
    """The bounds for which the snapshots were taken."""


class Mentions:
    """The names in the text of a statement, comments and literals included."""

    def __init__(self, statement: str) -> None:
        self._words = set(re.findall(r"[\w-]+", statement))
        # Names of topics may have hyphens, which are operators, too.
        self._words |= {part for word in self._words for part in word.split("-")}
        self._folded = {word.casefold() for word in self._words}

    def __contains__(self, name: str) -> bool:
        """Whether a name occurs, in upper or lower case: SQL ignores the case of names without quotes."""
        return name.casefold() in self._folded

    def topics(self, known: Mapping[str, TopicInfo]) -> list[str]:
        """The topics that the statement names.

        Raises:
            UsageError: two of them differ in the case of letters only.
        """
        found = [topic for topic in known if topic in self]
        exact = {topic.casefold(): topic for topic in found if topic in self._words}
        named = [topic for topic in found if exact.get(topic.casefold(), topic) == topic]
        if len({topic.casefold() for topic in named}) < len(named):
            raise UsageError(
                f"topics {', '.join(named)} differ in the case of letters only: write the one that is meant"
            )
        return named

    def asks_about(self, table: str) -> bool:
        """Whether the statement names a table of the node."""
        return NODE_SCHEMA in self and table in self


def tables_of(statement: str, material: Material, *, skip_damaged: bool = False) -> list[Table]:
    """Return the tables that the names of a statement stand for.

    Raises:
        SchemaConflict, FormatError: as `dataset_of`.
    """
    mentions = Mentions(statement)
    found = [
        table
        for snapshot in material.snapshots.values()
        for table in _tables(snapshot, material.span, mentions, skip_damaged)
    ]
    asked = node_tables(material.topics, material.segments, material.subscribers)
    return found + [Table(NODE_SCHEMA, name, rows) for name, rows in asked.items() if mentions.asks_about(name)]


def _tables(snapshot: Snapshot, span: Span, mentions: Mentions, skip_damaged: bool) -> Iterator[Table]:
    slot_ids = slots_of(snapshot) or [0]
    names = names_of(snapshot.slots, slot_ids)
    is_lone = len(slot_ids) == 1
    named = [(slot_id, name) for slot_id, name in zip(slot_ids, names, strict=True) if name in mentions]
    # Where none is named, the engine says that there is no such table, and the caller which there are.
    wanted = named or list(zip(slot_ids, names, strict=True))
    metadata = [name for name in METADATA.names if name in mentions]
    for slot_id, name in wanted:
        content = dataset_of(snapshot, span, slot=slot_id, metadata=metadata, skip_damaged=skip_damaged)
        if not content.schema.names:
            # An engine has no tables without columns.
            content = content.replace_schema(METADATA)
        yield Table(snapshot.topic, name, content)
        if is_lone:
            yield Table(None, snapshot.topic, content)
