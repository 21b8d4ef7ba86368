"""SQL over topics: finds the topics that a statement names, and the table that each of its names stands for.

A table is `topic.slot`, or `topic` alone where it has one slot. `quiver.topics`, `quiver.segments`, `quiver.subscribers` and `quiver.gaps`
describe the node. This module parses no statement: it prepares every table that the text may name, and the engine
uses those that it needs.
"""

from __future__ import annotations

from collections.abc import Iterator

from quiver_actors.query.dataset import dataset_of
from quiver_actors.query.engines import Table
from quiver_actors.query.material import NODE_SCHEMA, Material, Mentions
from quiver_actors.query.node_tables import node_tables
from quiver_actors.query.rows import METADATA
from quiver_actors.query.schemas import slots_of
from quiver_actors.query.snapshot import Snapshot, names_of
from quiver_actors.query.span import Span


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
