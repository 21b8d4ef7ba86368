"""Compares what the demo found: deliveries against receipts, delivered rows against the source."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

BUNDLE_ID = ("core", "segment_seq", "bundle_index")


@dataclass(frozen=True)
class Outcome:
    """The figures of the closing line."""

    pushed: int
    """Bundles that the Spark job holds a receipt for."""
    delivered: int
    """Different bundles that arrived."""
    lost: int
    """Bundles with a receipt that did not arrive."""
    redelivered: int
    """Deliveries of a bundle that had arrived before: its acknowledgement died with the worker."""
    pushed_again: int
    """Bundles stored twice: the producer's acknowledgement died with the worker, so it pushed again."""
    rows_equal: bool
    """One copy of each bundle holds exactly the rows of the source, as multisets."""

    @property
    def is_good(self) -> bool:
        """Whether no row was lost and all rows are equal to those pushed."""
        return self.lost == 0 and self.rows_equal

    def __str__(self) -> str:
        return (
            f"pushed={self.pushed} delivered={self.delivered} lost={self.lost} "
            f"duplicates={self.redelivered + self.pushed_again} rows_equal={str(self.rows_equal).lower()}"
        )


def compare(receipts: pa.Table, output: Path, source: Mapping[str, pa.Table]) -> Outcome:
    """Compare what the Parquet writer left in `output` with the receipts and the source tables.

    A delivery of a known bundle, and a bundle of a known block of hours, are duplicates: counted, and left out of the comparison
    of rows.
    """
    delivered: set[tuple[int, ...]] = set()
    blocks: set[int] = set()
    kept: list[int] = []
    redelivered = pushed_again = 0
    for row in read_parts(output, "deliveries").sort_by("delivery").to_pylist():
        bundle_id = tuple(row[name] for name in BUNDLE_ID)
        if bundle_id in delivered:
            redelivered += 1
        elif row["hours"] in blocks:
            pushed_again += 1
        else:
            kept.append(row["delivery"])
        delivered.add(bundle_id)
        blocks.add(row["hours"])
    acknowledged = set(zip(*(receipts[name].to_pylist() for name in BUNDLE_ID), strict=True))
    return Outcome(
        pushed=receipts.num_rows,
        delivered=len(delivered),
        lost=len(acknowledged - delivered),
        redelivered=redelivered,
        pushed_again=pushed_again,
        rows_equal=all(same_rows(_rows(output, name, kept), table) for name, table in source.items()),
    )


def read_parts(output: Path, name: str) -> pa.Table:
    """All `<name>-<n>.parquet` files as one table.

    Raises:
        FileNotFoundError: there are none.
    """
    parts = sorted(output.glob(f"{name}-*.parquet"))
    if not parts:
        raise FileNotFoundError(f"no {name} arrived: {output} has no {name}-*.parquet")
    return pa.concat_tables([pq.read_table(part) for part in parts])


def _rows(output: Path, name: str, deliveries: Iterable[int]) -> pa.Table:
    table = read_parts(output, name)
    return table.filter(pc.is_in(table["delivery"], value_set=pa.array(deliveries, pa.int64()))).drop(["delivery"])


def same_rows(left: pa.Table, right: pa.Table) -> bool:
    """Whether two tables hold the same rows the same number of times, in any order."""
    if left.num_rows != right.num_rows or set(left.column_names) != set(right.column_names):
        return False
    keys = [(name, "ascending") for name in right.column_names]
    ordered = (table.select(right.column_names).sort_by(keys).combine_chunks() for table in (left, right))
    return bool(next(ordered).equals(next(ordered)))
