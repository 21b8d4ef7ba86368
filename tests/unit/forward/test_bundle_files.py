from __future__ import annotations

import random
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from quiver_actors.errors import InvalidFormat
from quiver_actors.forward.bundle_files import (
    RUNS_KEY,
    BundleIndex,
    Origin,
    Place,
    Run,
    decode_runs,
    encode_runs,
    file_name,
    parse_name,
    runs_of,
)
from quiver_actors.forward.directory_files import NamedFiles

ORIGIN = Origin("clicks-and_more", 3, "0123abcd")


def write(directory: Path, places: list[Place], origin: Origin = ORIGIN) -> str:
    runs = runs_of(places)
    name = file_name(origin, runs)
    table = pa.table({"n": [1]}).replace_schema_metadata({RUNS_KEY: encode_runs(runs)})
    pq.write_table(table, directory / name)
    return name


def test_runs_are_what_was_put_in() -> None:
    assert runs_of([(2, 1), (1, 6), (1, 5), (2, 0), (1, 8), (1, 5)]) == [Run(1, 5, 2), Run(1, 8, 1), Run(2, 0, 2)]
    runs = runs_of([(1, 5), (7, 65_534)])
    assert decode_runs("f", encode_runs(runs)) == runs


@pytest.mark.parametrize("text", [None, b"", b"[", b"[1]", b'[["x",1,2]]', b"[[1,2]]", b"{}x"])
def test_metadata_of_others_is_refused(text: bytes | None) -> None:
    with pytest.raises(InvalidFormat, match="does not say"):
        decode_runs("f", text)


def test_name_and_back() -> None:
    name = file_name(ORIGIN, [Run(1, 5, 2), Run(12, 0, 3)])
    assert name == "clicks-and_more-core_3-0123abcd-00000001.00005-00000012.00002-5.parquet"
    found = parse_name(name)
    assert found is not None
    assert (found.origin, found.first, found.last, found.bundle_count) == (ORIGIN, (1, 5), (12, 2), 5)
    assert found.whole_run is None
    whole = parse_name(file_name(ORIGIN, [Run(1, 5, 2)]))
    assert whole is not None
    assert whole.whole_run == Run(1, 5, 2)
    assert parse_name("part-0001.parquet") is None
    assert parse_name(f".{name}") is None


def test_index_agrees_with_what_was_written(tmp_path: Path) -> None:
    draw = random.Random(4)
    places = [(seq, index) for seq in range(3) for index in range(40)]
    draw.shuffle(places)
    held = places[:80]
    for first in range(0, 80, 16):
        write(tmp_path, held[first : first + 16])
    index = BundleIndex(NamedFiles(str(tmp_path)))
    index.refresh()
    assert {place for place in places if index.holds(ORIGIN, place)} == set(held)
    assert not index.holds(ORIGIN._replace(incarnation="ffffffff"), held[0])
    assert not index.holds(ORIGIN._replace(core=4), held[0])


def test_index_sees_files_come_and_go(tmp_path: Path) -> None:
    index = BundleIndex(NamedFiles(str(tmp_path)))
    index.refresh()
    assert not index.holds(ORIGIN, (1, 1))
    name = write(tmp_path, [(1, 1), (1, 3)])
    index.refresh()
    assert [index.holds(ORIGIN, (1, number)) for number in range(5)] == [False, True, False, True, False]
    (tmp_path / name).unlink()
    index.refresh()
    assert not index.holds(ORIGIN, (1, 1))


def test_only_files_that_may_hold_a_bundle_are_read(tmp_path: Path) -> None:
    (tmp_path / file_name(ORIGIN, [Run(1, 0, 1), Run(1, 5, 1)])).write_bytes(b"damaged")
    write(tmp_path, [(2, 0), (2, 1)])
    index = BundleIndex(NamedFiles(str(tmp_path)))
    index.refresh()
    assert index.holds(ORIGIN, (2, 1))
    with pytest.raises(InvalidFormat, match="not a Parquet file"):
        index.holds(ORIGIN, (1, 3))
