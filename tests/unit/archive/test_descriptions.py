"""Segments are described in the manifest, and a question leaves out by that what cannot match, without a request to the store."""

from __future__ import annotations

import datetime
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from quiver_actors.archive.descriptions import Wanted
from quiver_actors.archive.manifest import merged
from quiver_actors.archive.manifest_store import read_part
from quiver_actors.archive.reading.archive import Archive
from quiver_actors.archive.reading.contents import NodeContents
from quiver_actors.errors import UsageError
from tests.support.archived import NODE, ArchiveWriter, sealed_segments
from tests.support.faulty_objects import FaultyStore

SEGMENTS = 6
BEGIN = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)


def batch(number: int) -> pa.RecordBatch:
    """Three rows: the number and two below the next ten, a day of its own, and a column that only even segments have."""
    day = BEGIN + datetime.timedelta(days=number)
    columns = {
        "n": pa.array([10 * number, None, 10 * number + 9], pa.int64()),
        "day": pa.array([day] * 3, pa.timestamp("us", "UTC")),
    }
    if number % 2 == 0:
        columns["even"] = pa.array([str(number)] * 3)
    return pa.record_batch(columns)


class Counted:
    """An archive of `SEGMENTS` segments, and how often its store is asked for them."""

    def __init__(self, directory: Path, contents: list[bytes], wanted: Wanted | None) -> None:
        self.writer = ArchiveWriter(f"memory://{uuid.uuid4().hex}", wanted=wanted)
        self.writer.archive(dict(enumerate(contents)))
        self.store = FaultyStore(self.writer.store)
        self.archive = Archive(self.store, NodeContents(self.store, NODE), str(directory), 1 << 30)
        self.archive.segments()  # the manifest is read

    def requests(self, call: Callable[[], object]) -> int:
        before = len(self.store.calls)
        call()
        return len(self.store.calls) - before


@pytest.fixture(scope="module")
def contents(tmp_path_factory: pytest.TempPathFactory) -> list[bytes]:
    directory = tmp_path_factory.mktemp("store")
    return sealed_segments(directory, [[{0: batch(number)}] for number in range(SEGMENTS)])


@pytest.fixture
def described(tmp_path: Path, contents: list[bytes]) -> Iterator[Counted]:
    made = Counted(tmp_path, contents, Wanted(event_time="day"))
    yield made
    made.archive.close()


@pytest.fixture
def bare(tmp_path: Path, contents: list[bytes]) -> Iterator[Counted]:
    """The same archive, made by an older program."""
    made = Counted(tmp_path, contents, None)
    yield made
    made.archive.close()


def values(counted: Counted, **choice: object) -> list[int | None]:
    return list(counted.archive.dataset(**choice).to_table(columns=["n"]).column("n").to_pylist())  # type: ignore[arg-type]


def test_segments_that_cannot_match_cost_no_request(described: Counted) -> None:
    def nothing() -> None:
        assert values(described, where="n > 1000") == []
        assert values(described, where="n >= 20 AND n <= 28 AND even = '4'") == []
        assert described.archive.sql('SELECT count(*) AS c FROM "default" WHERE n < 0').read_all().to_pylist() == [
            {"c": 0}
        ]

    def one() -> None:
        assert values(described, where="n > 40 AND n < 50") == [49]

    assert described.requests(nothing) == 0
    of_one = described.requests(one)
    assert 0 < of_one <= 3, "checksums, end and rows of one segment"


def test_schemas_come_from_the_manifest(described: Counted) -> None:
    def look() -> None:
        assert described.archive.dataset().schema.names == ["n", "day", "even"]

    assert described.requests(look) == 0


def test_event_times_leave_segments_out(described: Counted) -> None:
    def two() -> None:
        later = BEGIN + datetime.timedelta(days=SEGMENTS - 2)
        assert values(described, event_start=later) == [40, None, 49, 50, None, 59]
        assert values(described, event_start=later, event_end=later + datetime.timedelta(hours=1)) == [40, None, 49]
        assert values(described, event_end=BEGIN) == []

    assert 0 < described.requests(two) <= 6


def test_an_archive_without_descriptions_gives_the_same_rows(described: Counted, bare: Counted) -> None:
    assert bare.requests(lambda: values(bare, where="n > 1000")) > 0
    assert values(bare, where="n > 40") == values(described, where="n > 40") == [49, 50, 59]
    assert bare.archive.dataset().to_table().equals(described.archive.dataset().to_table())
    with pytest.raises(UsageError, match="no setting `event_time`"):
        values(bare, event_start=BEGIN)


@given(low=st.integers(-5, 65), high=st.integers(-5, 65), even=st.sampled_from([None, "0", "3", "4"]))
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_what_is_left_out_has_no_row(described: Counted, bare: Counted, low: int, high: int, even: str | None) -> None:
    condition = (pc.field("n") >= low) & (pc.field("n") < high)
    if even is not None:
        condition = condition | (pc.field("even") == even)
    assert (
        described.archive.dataset().to_table(filter=condition).equals(bare.archive.dataset().to_table(filter=condition))
    )


def test_the_row_of_a_segment_says_what_is_in_it(described: Counted) -> None:
    (stream,) = described.writer.manifest.head.streams
    part = merged(read_part(described.store, ref) for ref in stream.parts)
    assert stream.event_time == "day"
    assert len(part.schemas) == 2, "each schema once"
    for number, segment in enumerate(part.segments):
        day_ns = int((BEGIN + datetime.timedelta(days=number)).timestamp()) * 10**9
        assert segment.first_event_unix_ns == day_ns
        assert segment.last_event_unix_ns == day_ns + 999
        assert segment.streams == ((0, 3),)
        assert segment.schema_fingerprints is not None
        assert part.schemas.keys() >= set(segment.schema_fingerprints)


def test_only_the_columns_that_a_topic_names_have_bounds(tmp_path: Path, contents: list[bytes]) -> None:
    counted = Counted(tmp_path, contents, Wanted(frozenset({"day"}), "day"))
    assert counted.requests(lambda: values(counted, where="n > 1000")) > 0
    assert counted.requests(lambda: values(counted, event_end=BEGIN)) == 0
    counted.archive.close()


def test_segments_that_pyarrow_cannot_bound_are_read(tmp_path: Path) -> None:
    rows = pa.record_batch({"n": pa.array([np.nan, 1.0]), "list": pa.array([[1], [2]])})
    counted = Counted(tmp_path, sealed_segments(tmp_path / "store", [[{0: rows}]]), Wanted())
    found = counted.archive.dataset(where=pc.field("n") == 1.0).to_table()
    assert found.column("list").to_pylist() == [[2]]
    counted.archive.close()
