"""The demo's closing line tells the truth: each kind of loss and duplicate is seen."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from quiver_actors.cli.demo.compare import Outcome, compare, same_rows

FLIGHTS = pa.table({"flight": [1, 2, 3, 3], "tailnum": ["a", None, "c", "c"]})
RECEIPTS = pa.table({"core": [0, 1], "segment_seq": [0, 0], "bundle_index": [0, 0]})


def write(output: Path, deliveries: list[tuple[int, int, int]], rows: dict[int, list[int]]) -> None:
    """`deliveries`: core, bundle index and block of hours, numbered from 1; `rows`: row numbers of FLIGHTS by delivery."""
    table = [
        {"delivery": number, "core": core, "segment_seq": 0, "bundle_index": index, "hours": hours}
        for number, (core, index, hours) in enumerate(deliveries, start=1)
    ]
    pq.write_table(pa.Table.from_pylist(table), output / "deliveries-00000.parquet")
    for number, chosen in rows.items():
        part = FLIGHTS.take(chosen).append_column("delivery", pa.array([number] * len(chosen), pa.int64()))
        pq.write_table(part, output / f"flights-{number:05d}.parquet")


def outcome(output: Path) -> Outcome:
    return compare(RECEIPTS, output, {"flights": FLIGHTS})


def test_all_rows_once(tmp_path: Path) -> None:
    write(tmp_path, [(0, 0, 7), (1, 0, 8)], {1: [3, 0], 2: [2, 1]})
    found = outcome(tmp_path)
    assert found.is_good
    assert str(found) == "pushed=2 delivered=2 lost=0 duplicates=0 rows_equal=true"


def test_a_bundle_delivered_again_is_a_duplicate_but_no_other_row(tmp_path: Path) -> None:
    write(tmp_path, [(0, 0, 7), (1, 0, 8), (0, 0, 7)], {1: [0, 1], 2: [2, 3], 3: [0, 1]})
    assert outcome(tmp_path) == Outcome(2, 2, 0, redelivered=1, pushed_again=0, rows_equal=True)


def test_a_bundle_pushed_again_is_a_duplicate_but_no_other_row(tmp_path: Path) -> None:
    write(tmp_path, [(0, 0, 7), (0, 1, 8), (1, 0, 8)], {1: [0, 1], 2: [2, 3], 3: [2, 3]})
    assert outcome(tmp_path) == Outcome(2, 3, 0, redelivered=0, pushed_again=1, rows_equal=True)


def test_a_bundle_with_a_receipt_that_did_not_arrive_is_lost(tmp_path: Path) -> None:
    write(tmp_path, [(0, 0, 7)], {1: [0, 1]})
    found = outcome(tmp_path)
    assert (found.lost, found.rows_equal, found.is_good) == (1, False, False)


def test_a_wrong_row_is_seen(tmp_path: Path) -> None:
    write(tmp_path, [(0, 0, 7), (1, 0, 8)], {1: [0, 1], 2: [2, 2]})
    assert outcome(tmp_path).is_good, "rows 2 and 3 are the same row"
    write(tmp_path, [(0, 0, 7), (1, 0, 8)], {1: [0, 0], 2: [2, 3]})
    assert not outcome(tmp_path).rows_equal


def test_nothing_arrived_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="deliveries"):
        outcome(tmp_path)


def test_rows_are_compared_as_multisets() -> None:
    assert same_rows(FLIGHTS.take([3, 1, 0, 2]), FLIGHTS)
    assert same_rows(FLIGHTS.select(["tailnum", "flight"]), FLIGHTS)
    assert not same_rows(FLIGHTS.take([0, 1, 2]), FLIGHTS)
    assert not same_rows(FLIGHTS.take([0, 1, 1, 2]), FLIGHTS)
