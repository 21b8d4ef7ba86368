from __future__ import annotations

import fcntl
import os
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from quiver_actors.errors import UsageError
from quiver_actors.forward import Outcome, ParquetFiles, PermanentFailure, TransientFailure
from quiver_actors.forward.directory_files import DirectoryFiles
from quiver_actors.forward.forwarder import PERMANENT
from quiver_actors.forward.slot_files import TEMPORARY_PREFIX
from tests.unit.forward.stored import Stored, as_delivery

DURATION = pa.month_day_nano_interval()


def rows(directory: Path) -> list[int]:
    """All values of column n, in files that readers of a data set see."""
    found: list[int] = []
    for path in sorted(directory.glob("[!.]*.parquet")):
        found += pq.read_table(path).column("n").to_pylist()
    return sorted(found)


def offer(files: ParquetFiles, *stored: Stored) -> list[Outcome]:
    for each in stored:
        files.offer(as_delivery(each))
    files.hurry()
    return list(files.outcomes(0))


def test_bundles_arrive_in_one_file_a_slot_and_core(tmp_path: Path) -> None:
    schema_metadata = {"unit": "km"}
    flights = [pa.record_batch({"n": [n]}).replace_schema_metadata(schema_metadata) for n in range(6)]
    weather = pa.record_batch({"n": [77], "wind": [1.5]})
    with ParquetFiles(tmp_path, slots=["flights", "weather"]) as files:
        outcomes = offer(
            files,
            *(Stored(n, {0: flights[n], **({1: weather} if n == 2 else {})}, core=n % 2) for n in range(6)),
        )
        assert [outcome.error for outcome in outcomes] == [None] * 6
        assert (files.statistics().files, files.statistics().rows) == (3, 7)
    assert rows(tmp_path / "flights") == list(range(6))
    assert rows(tmp_path / "weather") == [77]
    names = sorted(path.name for path in (tmp_path / "flights").glob("*.parquet"))
    assert names == [
        "clicks-core_0-00010203-00000000.00000-00000000.00004-3.parquet",
        "clicks-core_1-00010203-00000000.00001-00000000.00005-3.parquet",
    ]
    assert pq.read_table(tmp_path / "flights" / names[0]).schema.metadata[b"unit"] == b"km"


def test_nulls_in_a_column_that_is_not_null_and_columns_of_one_name_stop_no_other_bundle(tmp_path: Path) -> None:
    strict = pa.schema([pa.field("n", pa.int64(), nullable=False)])
    nulls = pa.RecordBatch.from_arrays([pa.array([1, None])], schema=strict)
    twice = pa.RecordBatch.from_arrays([pa.array([2]), pa.array([3])], names=["m", "m"])
    with ParquetFiles(tmp_path) as files:
        stored = [Stored(n, {0: batch}) for n, batch in enumerate((nulls, twice, pa.record_batch({"n": [4]}), nulls))]
        assert [outcome.error for outcome in offer(files, *stored)] == [None] * 4
    contents = sorted((pq.ParquetFile(path).read() for path in tmp_path.rglob("[!.]*.parquet")), key=len)
    assert [table.column_names for table in contents] == [["m", "m"], ["n"]]
    assert contents[1].column("n").to_pylist() == [1, None, 4, 1, None]


def test_what_is_in_a_file_is_not_written_again(tmp_path: Path) -> None:
    with ParquetFiles(tmp_path) as files:
        offer(files, *map(Stored, [1, 2, 4]))
    with ParquetFiles(tmp_path) as files:
        outcomes = offer(files, *map(Stored, range(6)))
        assert [outcome.error for outcome in outcomes] == [None] * 6
        assert (files.statistics().rows, files.statistics().skipped) == (3, 3)
        assert [outcome.error for outcome in offer(files, Stored(3))] == [None]
        assert files.statistics().files == 1
    assert rows(tmp_path / "slot_0") == list(range(6))


def test_the_same_place_in_another_life_of_the_topic_is_another_bundle(tmp_path: Path) -> None:
    with ParquetFiles(tmp_path) as files:
        offer(files, Stored(1))
        offer(files, Stored(1, incarnation=bytes(16)), Stored(1, incarnation=None))
    assert rows(tmp_path / "slot_0") == [1, 1]


def test_one_bundle_taken_twice_is_written_once(tmp_path: Path) -> None:
    with ParquetFiles(tmp_path) as files:
        assert len(offer(files, Stored(1), Stored(1))) == 2
    assert rows(tmp_path / "slot_0") == [1]


def test_another_writer_may_have_been_faster(tmp_path: Path) -> None:
    """The other one finishes its file while ours is written: we find out before ours gets its name."""
    with ParquetFiles(tmp_path) as ours, ParquetFiles(tmp_path) as theirs:
        slow = Stored(1)
        ours.offer(as_delivery(slow))
        ours.offer(as_delivery(Stored(2)))
        directory = ours._files_of("slot_0")
        assert isinstance(directory, DirectoryFiles)
        parts = next(iter(ours._groups.values()))
        with directory.written({part.place: part for part in parts}, "zstd"):
            offer(theirs, Stored(1))
        ours.hurry()
        assert [outcome.error for outcome in ours.outcomes(0)] == [None, None]
        assert ours.statistics().skipped == 1
    assert rows(tmp_path / "slot_0") == [1, 2]


def test_files_are_finished_by_size_and_by_age(tmp_path: Path) -> None:
    with ParquetFiles(tmp_path, target_bytes=24, max_age=3600) as files:
        assert files.finish_at_ns is None
        for number in range(2):
            files.offer(as_delivery(Stored(number)))
        assert not files.outcomes(0)
        assert files.finish_at_ns is not None
        files.offer(as_delivery(Stored(2)))
        assert len(files.outcomes(0)) == 3
        assert files.finish_at_ns is None


def test_a_bundle_that_parquet_cannot_hold_is_refused_alone(tmp_path: Path) -> None:
    odd = pa.record_batch([pa.array([(1, 2, 3)], DURATION)], ["n"])
    with ParquetFiles(tmp_path) as files:
        with pytest.raises(PermanentFailure, match="as Parquet"):
            files.offer(as_delivery(Stored(1, {0: odd})))
        assert [outcome.error for outcome in offer(files, Stored(2))] == [None]
    assert rows(tmp_path / "slot_0") == [2]


def test_drifting_schemas_share_a_file_in_the_one_schema_that_holds_them(tmp_path: Path) -> None:
    drifting = [
        pa.record_batch({"n": pa.array([1], pa.int16())}),
        pa.record_batch({"n": pa.array([2]), "more": ["x"]}),
        pa.record_batch({"n": pa.array([3], pa.int8()), "more": pa.array(["y"]).dictionary_encode()}),
    ]
    with ParquetFiles(tmp_path) as files:
        offer(files, *(Stored(n, {0: batch}) for n, batch in enumerate(drifting)))
        assert files.statistics().files == 1
        # The next file keeps what was seen before.
        offer(files, Stored(3, {0: drifting[0]}))
    first, second = sorted((tmp_path / "slot_0").glob("*.parquet"))
    assert pq.read_table(first).to_pydict() == {"n": [1, 2, 3], "more": [None, "x", "y"]}
    assert pq.read_table(second).to_pydict() == {"n": [1], "more": [None]}
    assert pq.read_schema(first).equals(pq.read_schema(second))
    assert pq.read_schema(first).field("n").type == pa.int64()


def test_a_schema_without_a_common_one_has_files_of_its_own(tmp_path: Path) -> None:
    with ParquetFiles(tmp_path) as files:
        offer(files, Stored(1), Stored(2, {0: pa.record_batch({"n": ["two"]})}), Stored(3))
        assert files.statistics().files == 2
        offer(files, Stored(4, {0: pa.record_batch({"n": ["four"]})}))
    tables = [pq.read_table(path) for path in (tmp_path / "slot_0").glob("*.parquet")]
    assert sorted(str(table.column("n").to_pylist()) for table in tables) == ["['four']", "['two']", "[1, 3]"]


def test_a_value_that_does_not_fit_the_common_schema_keeps_its_own(tmp_path: Path) -> None:
    """No float holds 2**53 + 1: the bundle goes into a file of integers, and the others share theirs."""
    big = 2**53 + 1
    with ParquetFiles(tmp_path) as files:
        outcomes = offer(
            files, *(Stored(n, {0: pa.record_batch({"n": [v]})}) for n, v in enumerate([0.5, big, 7, 1.5]))
        )
        assert [outcome.error for outcome in outcomes] == [None] * 4
        assert files.statistics().files == 2
    tables = [pq.read_table(path).column("n") for path in (tmp_path / "slot_0").glob("*.parquet")]
    assert sorted((str(column.type), column.to_pylist()) for column in tables) == [
        ("double", [0.5, 7.0, 1.5]),
        ("int64", [big]),
    ]


def test_a_directory_that_cannot_be_written_is_tried_again(tmp_path: Path) -> None:
    with ParquetFiles(tmp_path) as files:
        (tmp_path / "slot_0").write_text("in the way")
        (outcome,) = offer(files, Stored(1))
        assert isinstance(outcome.error, OSError)
        (tmp_path / "slot_0").unlink()
        assert [outcome.error for outcome in offer(files, Stored(1))] == [None]
    assert rows(tmp_path / "slot_0") == [1]


def test_a_file_that_cannot_be_read_costs_no_bundle(tmp_path: Path) -> None:
    """Which bundles it holds is not known, so those that it may hold wait: a forwarder must not reject them."""
    with ParquetFiles(tmp_path) as files:
        offer(files, Stored(1), Stored(3))
    (path,) = (tmp_path / "slot_0").glob("*.parquet")
    os.truncate(path, 100)
    with ParquetFiles(tmp_path) as files:
        (outcome,) = offer(files, Stored(2))
        assert isinstance(outcome.error, TransientFailure), outcome.error
        assert not isinstance(outcome.error, PERMANENT)
        assert "is not a Parquet file" in str(outcome.error)
        path.rename(tmp_path / "elsewhere")
        assert [outcome.error for outcome in offer(files, Stored(2))] == [None]
    assert rows(tmp_path / "slot_0") == [2]


def test_files_of_dead_writers_are_swept_those_of_living_ones_are_not(tmp_path: Path) -> None:
    slot = tmp_path / "slot_0"
    slot.mkdir()
    dead, living = slot / f"{TEMPORARY_PREFIX}1-dead", slot / f"{TEMPORARY_PREFIX}2-living"
    dead.touch()
    with living.open("wb") as held, ParquetFiles(tmp_path) as files:
        fcntl.flock(held, fcntl.LOCK_EX)
        offer(files, Stored(1))
        assert sorted(name for name in os.listdir(slot) if name.startswith(TEMPORARY_PREFIX)) == [living.name]


@pytest.mark.parametrize("slots", [{0: "all", 1: "all"}, ["slot_1", 1]])
def test_two_slots_do_not_share_a_directory(tmp_path: Path, slots: Any) -> None:
    """Two slots in one directory: only one was written of each bundle, and the other was acknowledged with it."""
    with pytest.raises(UsageError, match="a directory, for each"):
        ParquetFiles(tmp_path, slots=slots)


def test_only_wanted_slots_are_written_and_a_bundle_without_them_is_done(tmp_path: Path) -> None:
    with ParquetFiles(tmp_path, slots={1: "weather"}) as files:
        batches = {0: pa.record_batch({"n": [1]}), 1: pa.record_batch({"n": [2]})}
        assert [outcome.error for outcome in offer(files, Stored(1, batches), Stored(2))] == [None, None]
    assert rows(tmp_path / "weather") == [2]
    assert os.listdir(tmp_path) == ["weather"]
