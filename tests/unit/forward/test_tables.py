"""Rows and positions in lake tables: restarts, other writers, holes, columns that come and widen."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from quiver_actors.base.widening import SchemaConflict
from quiver_actors.errors import UnsupportedType, UsageError
from quiver_actors.forward import Forwarder, IcebergTable, OutOfOrder, PermanentFailure, TableMissing
from quiver_actors.forward.bundle_files import Origin
from quiver_actors.forward.errors import CommitConflict
from quiver_actors.forward.table_deliverer import TableDeliverer
from tests.unit.forward.lakes import LAKES, Lake, catalog
from tests.unit.forward.owing import Owing
from tests.unit.forward.stored import Stored, as_delivery

ORIGIN = Origin("clicks", 0, "00010203")


@pytest.fixture(params=LAKES)
def lake(request: pytest.FixtureRequest) -> Lake:
    return LAKES[request.param]


def numbers(lake: Lake, directory: Path) -> list[int]:
    return sorted(lake.read(directory).column("n").to_pylist())


def offer(deliverer: TableDeliverer, *stored: Stored) -> list[Exception | None]:
    """Offer bundles and return their errors; those without one are acknowledged."""
    for each in stored:
        deliverer.offer(as_delivery(each))
    deliverer.hurry()
    outcomes = {id(outcome.delivery): outcome.error for outcome in deliverer.outcomes(0)}
    errors = [outcomes[id(each)] for each in stored]
    for each, error in zip(stored, errors, strict=True):
        if error is None and not each.resolution:
            each.ack()
    return errors


def test_a_restart_neither_loses_nor_doubles_a_row(lake: Lake, tmp_path: Path) -> None:
    source = Owing(*(Stored(n, core=n % 2) for n in range(250)))
    with lake.deliverer(tmp_path, source) as deliverer:
        for stored in source.all[:100]:
            deliverer.offer(as_delivery(stored))
        deliverer.hurry()
        # Nothing of it was acknowledged.
    with lake.deliverer(tmp_path, source) as deliverer:
        statistics = Forwarder(source, deliverer).run(idle_timeout=0)
        assert (statistics.delivered, statistics.deferred) == (250, 0)
        assert (deliverer.statistics().skipped, deliverer.statistics().rows) == (100, 150)
    assert numbers(lake, tmp_path) == list(range(250))


def test_nothing_is_committed_past_a_bundle_that_is_owed(lake: Lake, tmp_path: Path) -> None:
    """Another consumer has bundle 1: what is newer waits, and comes in when bundle 1 is done with or here."""
    source = Owing(*map(Stored, range(6)))
    zero, one, two, three, *rest = source.all
    with lake.deliverer(tmp_path, source) as deliverer:
        errors = offer(deliverer, zero, two, three)
        assert errors[0] is None
        assert all(isinstance(error, OutOfOrder) for error in errors[1:])
        assert "oldest first" in str(errors[1])
        assert numbers(lake, tmp_path) == [0]
        assert offer(deliverer, one) == [None]
        assert offer(deliverer, three, two) == [None, None]
        rest[0].reject()
        assert offer(deliverer, rest[1]) == [None]
    assert numbers(lake, tmp_path) == [0, 1, 2, 3, 5]


def test_two_processes_of_one_subscriber_double_nothing(lake: Lake, tmp_path: Path) -> None:
    """Both hold the same bundles, because leases were over; one commits while the other is about to."""
    source = Owing(*map(Stored, range(8)))
    with lake.deliverer(tmp_path, source) as ours, lake.deliverer(tmp_path, source) as theirs:
        offer(ours, source.all[0])
        late = _Late(ours, lambda: offer(theirs, *source.all[1:4]))
        ours._table = late
        again = [Stored(n) for n in range(1, 6)]
        assert offer(ours, *again) == [None] * 5
        assert ours.statistics().conflicts == 1
    assert numbers(lake, tmp_path) == list(range(6))


class _Late:
    """A table to which somebody else commits between our look and our commit."""

    def __init__(self, deliverer: TableDeliverer, meanwhile: Any) -> None:
        self._table = deliverer._table
        self._meanwhile = meanwhile

    def __getattr__(self, name: str) -> Any:
        return getattr(self._table, name)

    def append(self, *arguments: Any) -> None:
        meanwhile, self._meanwhile = self._meanwhile, lambda: None
        meanwhile()
        self._table.append(*arguments)


def test_a_commit_on_an_old_position_is_refused(lake: Lake, tmp_path: Path) -> None:
    rows = pa.table({"n": pa.array([1], pa.int64())})
    one, other, foreign = (lake.seam(tmp_path, name) for name in ("lake", "lake", "another"))
    one.load({ORIGIN})
    one.evolve(rows.schema)
    for each in (one, other, foreign):
        each.load({ORIGIN})
    one.append(rows, {ORIGIN: (0, 1)})
    with pytest.raises(CommitConflict):
        other.append(rows, {ORIGIN: (0, 2)})
    foreign.load({ORIGIN})
    foreign.append(rows, {ORIGIN: (7, 65_534)})
    assert one.load({ORIGIN}).positions == {ORIGIN: (0, 1)}
    assert foreign.load({ORIGIN}).positions == {ORIGIN: (7, 65_534)}
    assert numbers(lake, tmp_path) == [1, 1]


class _NeverReady:
    """A table that never gets the columns that it is given."""

    def __init__(self, table: Any) -> None:
        self._table = table

    def __getattr__(self, name: str) -> Any:
        return getattr(self._table, name)

    def evolve(self, schema: pa.Schema) -> None:
        """Do nothing."""


def test_a_table_that_never_settles_acknowledges_nothing(lake: Lake, tmp_path: Path) -> None:
    source = Owing(Stored(0))
    with lake.deliverer(tmp_path, source) as deliverer:
        table: Any = deliverer._table
        deliverer._table = _NeverReady(table)
        (error,) = offer(deliverer, source.all[0])
        assert isinstance(error, CommitConflict)
        deliverer._table = table
        assert offer(deliverer, source.all[0]) == [None]
    assert numbers(lake, tmp_path) == [0]


def test_columns_come_and_drifting_types_share_a_commit(lake: Lake, tmp_path: Path) -> None:
    batches = [
        pa.record_batch({"n": pa.array([0], pa.int64())}),
        pa.record_batch({"n": pa.array([1], pa.int8()), "text": pa.array(["x"]).dictionary_encode()}),
        pa.record_batch({"n": pa.array([2], pa.uint16()), "text": pa.array([None], pa.null()), "at": [1.5]}),
    ]
    source = Owing(*(Stored(n, {0: batch}) for n, batch in enumerate(batches)))
    with lake.deliverer(tmp_path, source) as deliverer:
        assert offer(deliverer, source.all[0]) == [None]
        assert offer(deliverer, *source.all[1:]) == [None, None]
        assert deliverer.statistics().commits == 2
    found = lake.read(tmp_path).sort_by("n")
    assert found.to_pydict() == {"n": [0, 1, 2], "text": [None, "x", None], "at": [None, None, 1.5]}


def test_what_the_table_cannot_become_waits_and_names_the_column(lake: Lake, tmp_path: Path) -> None:
    source = Owing(Stored(0), Stored(1, {0: pa.record_batch({"n": ["text"]})}), Stored(2))
    with lake.deliverer(tmp_path, source) as deliverer:
        first, second, third = offer(deliverer, *source.all)
        assert first is None
        assert isinstance(second, SchemaConflict)
        assert "column 'n'" in str(second)
        assert isinstance(third, OutOfOrder)
        source.all[1].reject()
        assert offer(deliverer, source.all[2]) == [None]
    assert numbers(lake, tmp_path) == [0, 2]


def test_iceberg_widens_and_delta_refuses_by_name(tmp_path: Path) -> None:
    batches = [pa.record_batch({"n": pa.array([1], pa.int32())}), pa.record_batch({"n": pa.array([2**40])})]
    for name, lake in LAKES.items():
        directory = tmp_path / name
        directory.mkdir()
        source = Owing(*(Stored(n, {0: batch}) for n, batch in enumerate(batches)))
        with lake.deliverer(directory, source) as deliverer:
            assert offer(deliverer, source.all[0]) == [None]
            (error,) = offer(deliverer, source.all[1])
        assert (error is None) == (name == "iceberg")
        assert error is None or (isinstance(error, SchemaConflict) and "int64" in str(error))
        assert numbers(lake, directory) == ([1, 2**40] if error is None else [1])


def test_values_that_would_change_are_refused(lake: Lake, tmp_path: Path) -> None:
    exact = pa.record_batch({"n": pa.array([1_000], pa.timestamp("ns", "Europe/Berlin"))})
    finer = pa.record_batch({"n": pa.array([1_001], pa.timestamp("ns", "UTC"))})
    source = Owing(Stored(0, {0: exact}), Stored(1, {0: finer}))
    with lake.deliverer(tmp_path, source) as deliverer:
        first, second = offer(deliverer, *source.all)
        assert first is None
        assert isinstance(second, UnsupportedType)
        assert "microseconds" in str(second)
        with pytest.raises(PermanentFailure, match="column 'n'"):
            deliverer.offer(as_delivery(Stored(2, {0: pa.record_batch({"n": pa.array([1], pa.duration("s"))})})))
    assert [value.value for value in lake.read(tmp_path).column("n")] == [1]


def test_a_missing_table_is_made_or_waited_for(lake: Lake, tmp_path: Path) -> None:
    source = Owing(Stored(0))
    with lake.deliverer(tmp_path, source, create=False) as deliverer:
        (error,) = offer(deliverer, source.all[0])
        assert isinstance(error, TableMissing)
    with lake.deliverer(tmp_path, source) as deliverer:
        assert offer(deliverer, source.all[0]) == [None]
    with lake.deliverer(tmp_path, source, create=False) as deliverer:
        assert offer(deliverer, source.all[0]) == [None]
    assert numbers(lake, tmp_path) == [0]


def test_other_orders_are_refused(lake: Lake, tmp_path: Path) -> None:
    source = Owing()
    source.order = "newest"
    with pytest.raises(UsageError, match="oldest first"):
        lake.deliverer(tmp_path, source)


def test_bundles_without_the_slot_and_without_rows_are_done_with(lake: Lake, tmp_path: Path) -> None:
    empty = pa.record_batch({"n": pa.array([], pa.int64())})
    source = Owing(Stored(0, {1: empty}), Stored(1, {0: empty}), Stored(2))
    with lake.deliverer(tmp_path, source, slot="flights") as deliverer:
        assert offer(deliverer, *source.all) == [None] * 3
        assert deliverer.statistics().rows == 1
    assert numbers(lake, tmp_path) == [2]


def test_delta_keeps_positions_in_checkpoints(tmp_path: Path) -> None:
    from deltalake import DeltaTable as LibraryTable

    lake, source = LAKES["delta"], Owing(*map(Stored, range(4)))
    with lake.deliverer(tmp_path, source) as deliverer:
        offer(deliverer, source.all[0])
        offer(deliverer, source.all[1])
    LibraryTable(tmp_path / "table").create_checkpoint()
    for log in sorted((tmp_path / "table" / "_delta_log").glob("*.json"))[:-1]:
        log.unlink()
    with lake.deliverer(tmp_path, source) as deliverer:
        offer(deliverer, *(Stored(n) for n in range(4)))
    assert numbers(lake, tmp_path) == list(range(4))


def test_iceberg_keeps_positions_when_snapshots_expire(tmp_path: Path) -> None:
    lake, source = LAKES["iceberg"], Owing(*map(Stored, range(3)))
    with lake.deliverer(tmp_path, source) as deliverer:
        offer(deliverer, source.all[0])
        offer(deliverer, source.all[1])
    table = catalog(tmp_path).load_table("lake.numbers")
    ours = table.snapshots()
    assert ours[-1].summary is not None
    assert ours[-1].summary["quiver.subscriber"] == "lake"
    table.append(pa.table({"n": pa.array([100], pa.int64())}))
    table.maintenance.expire_snapshots().by_ids([each.snapshot_id for each in ours]).commit()
    with lake.deliverer(tmp_path, source) as deliverer:
        offer(deliverer, *(Stored(n) for n in range(3)))
    assert numbers(lake, tmp_path) == [0, 1, 2, 100]


def test_a_catalog_that_was_named_is_closed_with_its_deliverer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from pyiceberg.utils.config import Config

    database = tmp_path / "catalog.db"
    monkeypatch.setenv("PYICEBERG_CATALOG__QUIVER__TYPE", "sql")
    monkeypatch.setenv("PYICEBERG_CATALOG__QUIVER__URI", f"sqlite:///{database}")
    monkeypatch.setattr("pyiceberg.catalog._ENV_CONFIG", Config())
    with IcebergTable("quiver", "lake.numbers", Owing()):
        assert str(database) in opened_files()
    assert str(database) not in opened_files()


def opened_files() -> set[str]:
    """The paths of all open descriptors."""
    found = set()
    for number in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):
            found.add(os.readlink(f"/proc/self/fd/{number}"))
    return found
