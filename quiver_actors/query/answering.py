"""The answer to a SQL statement: from row counts where it asks for no more, otherwise by an engine, which is loaded then."""

from __future__ import annotations

import re
import threading

import pyarrow as pa

from quiver_actors.query.limits import SqlLimits
from quiver_actors.query.material import NODE_SCHEMA, Material
from quiver_actors.query.rows import Rows
from quiver_actors.query.schemas import slots_of, stored_schema
from quiver_actors.query.snapshot import Progress, Snapshot, names_of

_NAME = r'("(?:[^"]|"")+"|[a-z_][a-z0-9_]*)'
_COUNT = re.compile(
    rf"\s*select\s+count\s*\(\s*\*\s*\)(?:\s+as\s+([a-z_][a-z0-9_]*))?\s+from\s+{_NAME}(?:\.{_NAME})?\s*;?\s*"
)
_COLUMN = {"duckdb": "count_star()", "datafusion": "count(*)"}
"""What each engine calls the count that has no name."""


def answer_of(
    engine: str,
    statement: str,
    material: Material,
    *,
    skip_damaged: bool,
    progress: Progress | None = None,
    limits: SqlLimits | None = None,
) -> pa.RecordBatchReader:
    """Run a statement and return its rows, which are computed as they are read. Raises as `run_statement` and `tables_of`."""
    if progress is not None:
        material = _watched(material, progress)
    counted = _counted(engine, statement, material, skip_damaged=skip_damaged)
    if counted is not None:
        return counted.to_reader()
    from quiver_actors.query.engines import run_statement
    from quiver_actors.query.sql import tables_of

    return run_statement(engine, statement, tables_of(statement, material, skip_damaged=skip_damaged), limits)


def _watched(material: Material, progress: Progress) -> Material:
    """The same material, whose bytes are counted when they have been read."""
    total_bytes = sum(part.size_bytes for snapshot in material.snapshots.values() for part in snapshot.parts)
    done_bytes, lock = 0, threading.Lock()

    def count(size_bytes: int) -> None:
        nonlocal done_bytes
        with lock:
            # A table that a statement names twice is read twice.
            done_bytes = min(done_bytes + size_bytes, total_bytes)
            progress(done_bytes, total_bytes)

    snapshots = {topic: each._replace(tell_read=count) for topic, each in material.snapshots.items()}
    return material._replace(snapshots=snapshots)


def _counted(engine: str, statement: str, material: Material, *, skip_damaged: bool) -> pa.Table | None:
    """The answer to a statement that counts all rows of one slot; None: it is another statement, or the engine has to say what it means."""
    matched = _COUNT.fullmatch(_with_small_keywords(statement))
    if matched is None or engine not in _COLUMN:
        return None
    column, *names = matched.groups()
    topic, slot = (None if name is None else _unquoted(name) for name in names)
    snapshot = material.snapshots.get(topic or "")
    slot_id = None if snapshot is None or topic == NODE_SCHEMA else _slot_named(snapshot, slot)
    if snapshot is None or slot_id is None:
        return None
    count = row_count(Rows(snapshot, slot_id, material.span, skip_damaged))
    return pa.table({column or _COLUMN[engine]: pa.array([count], pa.int64())})


def _with_small_keywords(statement: str) -> str:
    """The statement with its keywords in lower case. Other capitals stay: engines do not agree on what they mean."""
    return re.sub(r'"[^"]*"|\b(?:SELECT|COUNT|AS|FROM)\b', lambda found: _small(found[0]), statement)


def _small(word: str) -> str:
    return word if word.startswith('"') else word.lower()


def _unquoted(name: str) -> str:
    return name[1:-1].replace('""', '"') if name.startswith('"') else name


def _slot_named(snapshot: Snapshot, slot: str | None) -> int | None:
    """The slot of that name, or of its number where it has none; None: there is none, or there are several and none was named."""
    ids = slots_of(snapshot) or [0]
    if slot is None:
        return ids[0] if len(ids) == 1 else None
    return dict(zip(names_of(snapshot.slots, ids), ids, strict=True)).get(slot)


def row_count(rows: Rows) -> int:
    """Count rows, by tables of contents where these say it. Raises as `Rows.batches` and `stored_schema`."""
    counts = [(part, rows.known_row_count(part)) for part in rows.snapshot.parts]
    unknown = [part for part, known in counts if known is None]
    found = sum(known for _, known in counts if known is not None)
    if unknown:
        found += sum(batch.num_rows for batch in rows.batches(unknown, pa.schema([]), stored_schema(rows)))
    return found
