"""Archives in a server of S3's protocol: what is fetched of them, and that what is read is right."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

import quiver_actors
from quiver_actors.archive.reading.archive import Archive
from quiver_actors.archive.reading.contents import NodeContents
from quiver_actors.errors import ChecksumMismatch, UsageError
from quiver_actors.store.objects.object_store import ObjectStore
from tests.integration.capped_node import wait_until
from tests.integration.test_archive import archiving_node
from tests.support.archived import NODE, ArchiveWriter, sealed_segments
from tests.support.object_servers import serving

ROWS = 60_000


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with serving("moto", tmp_path_factory.mktemp("moto")) as (url, environment), pytest.MonkeyPatch.context() as patch:
        for name, value in environment.items():
            patch.setenv(name, value)
        yield url


class Counting:
    """A store that counts what is read of segments."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self.ranges: list[tuple[int, int]] = []

    def __getattr__(self, name: str) -> object:
        return getattr(self._store, name)

    def read(self, key: str, start: int, end: int) -> Iterator[bytes | memoryview]:
        self.ranges.append((start, end))
        return self._store.read(key, start, end)

    @property
    def fetched_bytes(self) -> int:
        return sum(end - start for start, end in self.ranges)


def wide(seed: int) -> pa.RecordBatch:
    rng = np.random.default_rng(seed)
    return pa.record_batch({f"c{number}": rng.integers(0, 1 << 60, ROWS) for number in range(10)})


def test_one_of_ten_columns_takes_less_than_a_fifth_of_the_bytes(server: str, tmp_path: Path) -> None:
    contents = sealed_segments(tmp_path / "store", [[wide(0), wide(1)], [wide(2), wide(3)]])
    writer = ArchiveWriter(f"{server}/wide")
    writer.archive(dict(enumerate(contents)))
    counting = Counting(writer.store)
    archive = Archive(counting, NodeContents(writer.store, NODE), str(tmp_path), 1 << 30)  # type: ignore[arg-type]
    for seed, found in enumerate(archive.read("default", 0, columns={0: ["c7"]})):
        assert found.batch == wide(seed).select(["c7"])
    total = sum(map(len, contents))
    assert counting.fetched_bytes < 0.2 * total
    assert max(end - start for start, end in counting.ranges) <= 4 << 20

    counting.ranges.clear()
    for seed, found in enumerate(archive.read("default", 0)):
        assert found.batch == wide(seed)
    # The blocks of the column are here already.
    assert 0.7 * total < counting.fetched_bytes < total
    assert len(counting.ranges) < 60


def test_a_server_is_read_with_its_credentials_alone(server: str, tmp_path: Path) -> None:
    batches = [[pa.record_batch({"n": [seq, index]}) for index in range(3)] for seq in range(2)]
    contents = sealed_segments(tmp_path / "store", batches)
    writer = ArchiveWriter(f"{server}/small")
    writer.archive(dict(enumerate(contents)))
    with quiver_actors.open_archive(f"{server}/small", cache_dir=tmp_path) as archive:
        found = [each.batch.to_pydict()["n"] for each in archive.read("default", 0)]
    assert found == [[seq, index] for seq in range(2) for index in range(3)]
    damaged = contents[1][:2000] + b"\xff" + contents[1][2001:]
    writer.store.put(writer.key(1), [damaged], len(damaged))
    with quiver_actors.open_archive(f"{server}/small", cache_dir=tmp_path) as archive:
        for each in archive.read("default", 0):
            if each.bundle_id.segment_seq == 0:
                assert each.batch.num_rows == 2
            else:
                with pytest.raises(ChecksumMismatch):
                    each.slots  # noqa: B018 - a property that raises


def test_what_a_node_has_archived_is_read_when_the_node_is_gone(tmp_path: Path) -> None:
    url = f"file://{tmp_path}/archive"
    with archiving_node(url, "[topics.travel.slots]\npage = 3\n") as node:
        with node.connect() as client:
            for start in range(0, 30, 10):
                client.push_many(
                    [{"page": pa.record_batch({"id": [n]})} for n in range(start, start + 10)], topic="travel"
                )
                client.flush("travel")
            stored = {
                each.bundle_id: (dict(each.slots), each.ingestion_unix_ns, each.incarnation)
                for core in client.readable("travel")
                for each in client.read("travel", core)
            }
        wait_until(lambda: archived_count(url, "travel") == len(stored) == 30, "all is archived")
    with quiver_actors.open_archive(url) as archive:
        found = {
            each.bundle_id: (dict(each.slots), each.ingestion_unix_ns, each.incarnation)
            for core in archive.segments("travel")
            for each in archive.read("travel", core, slots=["page"])
        }
        assert found == stored
        assert archive.topics()["travel"].slots == {"page": 3}


def archived_count(url: str, topic: str) -> int:
    """How many bundles of a topic the archive has."""
    try:
        with quiver_actors.open_archive(url) as archive:
            return sum(info.bundle_count for infos in archive.segments(topic).values() for info in infos)
    except UsageError:
        return 0
