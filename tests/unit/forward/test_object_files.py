"""Parquet files below a prefix of an object store: what a reader finds there after writers died at any call, or met."""

from __future__ import annotations

import signal
import subprocess
import uuid
from collections.abc import Callable, Iterable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from quiver_actors.errors import ConfigError
from quiver_actors.forward import ParquetFiles, TransientFailure
from quiver_actors.forward.bundle_files import origin_of
from quiver_actors.forward.object_files import PUBLISHING_NAME, ObjectFiles
from quiver_actors.forward.parts import Part
from quiver_actors.forward.slot_files import TEMPORARY_PREFIX
from quiver_actors.store.objects.errors import ArchiveUnavailable
from quiver_actors.store.objects.object_store import ObjectStore, Version
from quiver_actors.store.objects.opening import open_store
from tests.integration.node_process import ROOT, command_line
from tests.unit.forward.stored import Stored, as_delivery
from tests.unit.forward.test_parquet_files import offer

ORIGIN = origin_of(as_delivery(Stored(0)))
WRITING_CALLS = 4
"""One file takes these: temporary object, decision, file, and the deletion of the temporary object."""


@pytest.fixture
def url() -> str:
    return f"memory://{uuid.uuid4().hex}"


def rows(store: ObjectStore, slot: str = "slot_0") -> list[int]:
    """All values of column n, in objects that readers of a data set see."""
    found: list[int] = []
    for info in store.objects(slot):
        if not info.key.rpartition("/")[2].startswith("."):
            content = store.get(info.key)
            assert content is not None
            found += pq.read_table(pa.BufferReader(content.content)).column("n").to_pylist()
    return sorted(found)


def parts_of(numbers: Iterable[int]) -> list[Part]:
    stored = [Stored(number) for number in numbers]
    return [
        Part(as_delivery(each), (each.bundle_id.segment_seq, each.bundle_id.bundle_index), each[0]) for each in stored
    ]


def test_bundles_arrive_once_whoever_writes_them(url: str) -> None:
    with ParquetFiles(url) as files:
        offer(files, *map(Stored, [1, 2, 4]))
        with ParquetFiles(url) as others:
            assert [outcome.error for outcome in offer(others, *map(Stored, range(6)))] == [None] * 6
            assert (others.statistics().rows, others.statistics().skipped) == (3, 3)
        assert [outcome.error for outcome in offer(files, *map(Stored, range(8)))] == [None] * 8
        assert (files.statistics().files, files.statistics().skipped) == (2, 6)
    assert rows(open_store(url)) == list(range(8))
    names = [info.key.rpartition("/")[2] for info in open_store(url).objects("slot_0")]
    assert [name for name in names if name.startswith(".")] == [PUBLISHING_NAME]


@pytest.mark.parametrize("calls", range(WRITING_CALLS + 1))
@pytest.mark.crash
def test_a_writer_killed_at_any_call_neither_loses_nor_doubles_a_row(tmp_path: Path, calls: int) -> None:
    target = f"file://{tmp_path}/store"
    command = command_line("tests.unit.forward.dying_store", target, str(calls))
    ended = subprocess.run(command, cwd=ROOT, check=False, timeout=120)
    assert ended.returncode == -signal.SIGKILL
    store = open_store(target)
    files = ObjectFiles(store, "slot_0")
    # The bundles come again with others, in another division.
    for numbers in (range(2, 5), range(6)):
        files.write(ORIGIN, parts_of(numbers), "zstd")
    assert rows(store) == list(range(6))


class _Meanwhile:
    """Passes calls on; somebody else writes just before or just after the decision."""

    def __init__(self, store: ObjectStore, meanwhile: Callable[[], None], *, is_before: bool) -> None:
        self._store = store
        self._meanwhile = meanwhile
        self._is_before = is_before

    def __getattr__(self, name: str) -> object:
        return getattr(self._store, name)

    def replace(self, key: str, content: bytes, version: Version) -> Version:
        meanwhile, self._meanwhile = self._meanwhile, lambda: None
        if self._is_before:
            meanwhile()
        decided = self._store.replace(key, content, version)
        if not self._is_before:
            meanwhile()
        return decided


@pytest.mark.parametrize("is_before", [True, False])
def test_a_writer_that_another_one_overtakes_doubles_nothing(url: str, is_before: bool) -> None:
    """Before the decision ours is refused and written anew; after it the other one puts our file first."""
    store = open_store(url)
    theirs = ObjectFiles(store, "slot_0")
    theirs.write(ORIGIN, parts_of([0]), "zstd")

    def overtake() -> None:
        theirs.write(ORIGIN, parts_of(range(2, 6)), "zstd")

    ours = ObjectFiles(_Meanwhile(store, overtake, is_before=is_before), "slot_0")  # type: ignore[arg-type]
    ours.write(ORIGIN, parts_of(range(1, 4)), "zstd")
    assert rows(store) == list(range(6))


class AnswersLost:
    """Passes calls on; the answer to the first decision is lost, whether or not it had its effect."""

    def __init__(self, store: ObjectStore, *, has_effect: bool) -> None:
        self._store = store
        self._has_effect = has_effect
        self._is_lost = False

    def __getattr__(self, name: str) -> object:
        return getattr(self._store, name)

    def create(self, key: str, content: bytes) -> Version:
        if self._is_lost:
            return self._store.create(key, content)
        self._is_lost = True
        if self._has_effect:
            self._store.create(key, content)
        raise ArchiveUnavailable("the answer was lost")


@pytest.mark.parametrize("has_effect", [True, False])
def test_a_lost_answer_is_looked_up_when_the_bundles_come_again(url: str, has_effect: bool) -> None:
    store = AnswersLost(open_store(url), has_effect=has_effect)
    files = ObjectFiles(store, "slot_0")  # type: ignore[arg-type]
    parts = parts_of(range(3))
    with pytest.raises(ArchiveUnavailable):
        files.write(ORIGIN, parts, "zstd")
    files.write(ORIGIN, parts, "zstd")
    assert rows(open_store(url)) == [0, 1, 2]


def test_temporary_objects_of_the_dead_go_after_a_day(url: str) -> None:
    store = open_store(url)
    old, new = f"slot_0/{TEMPORARY_PREFIX}1000-dead", f"slot_0/{TEMPORARY_PREFIX}99999999999-living"
    for key in (old, new):
        store.create(key, b"")
    ObjectFiles(store, "slot_0")
    assert [info.key for info in store.objects("slot_0")] == [new]


def test_an_object_that_cannot_be_read_costs_no_bundle(url: str) -> None:
    with ParquetFiles(url) as files:
        offer(files, Stored(1), Stored(3))
    store = open_store(url)
    (key,) = (info.key for info in store.objects("slot_0") if info.key.endswith(".parquet"))
    store.delete(key)
    store.create(key, b"damaged, and long enough")
    with ParquetFiles(url) as files:
        (outcome,) = offer(files, Stored(2))
        assert isinstance(outcome.error, TransientFailure)
        store.delete(key)
    with ParquetFiles(url) as files:
        assert [outcome.error for outcome in offer(files, Stored(2))] == [None]
    assert rows(store) == [2]


def test_urls_that_name_no_place_are_refused() -> None:
    for target in ("nowhere://bucket/prefix", "file://host/directory"):
        with pytest.raises(ConfigError):
            ParquetFiles(target)
