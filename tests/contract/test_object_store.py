"""All object stores behave alike: one suite over memory, a directory, and the servers that are installed here."""

from __future__ import annotations

import os
import threading
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from quiver_actors.errors import DiskError, TransactionAborted
from quiver_actors.flight.member_entries import StoreEntries
from quiver_actors.flight.members import Member, MemberDirectory
from quiver_actors.forward import ParquetFiles
from quiver_actors.store.objects.object_store import (
    MULTIPART_BYTES,
    PART_BYTES,
    Metadata,
    ObjectChanged,
    ObjectExists,
    ObjectMissing,
    ObjectStore,
    Version,
)
from quiver_actors.store.objects.opening import open_store
from quiver_actors.store.objects.single_writer import SingleWriterStore
from quiver_actors.transactions import Decision, Decisions
from quiver_actors.transactions.store_files import StoreFiles
from tests.increments import counted_in_processes, counted_in_threads
from tests.support.faulty_objects import UnconditionalStore
from tests.support.object_servers import KINDS, serving
from tests.unit.forward.stored import Stored
from tests.unit.forward.test_parquet_files import offer

ALONE = "alone"
"""An object store without conditional puts, behind the fallback for one."""


@pytest.fixture(scope="module", params=[*KINDS, ALONE])
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, str]]:
    kind = "moto" if request.param == ALONE else request.param
    with serving(kind, tmp_path_factory.mktemp(request.param)) as (url, environment):
        before = {name: os.environ.get(name) for name in environment}
        os.environ.update(environment)
        yield request.param, url
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


@pytest.fixture
def url(server: tuple[str, str]) -> str:
    return f"{server[1]}/{uuid.uuid4().hex}"


@pytest.fixture
def store(url: str, server: tuple[str, str]) -> Iterator[ObjectStore]:
    made: ObjectStore = open_store(url)
    if server[0] == ALONE:
        made = SingleWriterStore(UnconditionalStore(made))
    yield made
    made.close()


def test_an_object_is_created_once(store: Metadata) -> None:
    assert store.get("node/a") is None
    version = store.create("node/a", b"one")
    with pytest.raises(ObjectExists):
        store.create("node/a", b"two")
    found = store.get("node/a")
    assert found is not None
    assert (found.content, found.version.etag) == (b"one", version.etag)


def test_an_object_is_replaced_only_in_the_version_that_was_seen(store: Metadata) -> None:
    first = store.create("node/a", b"one")
    second = store.replace("node/a", b"two", first)
    with pytest.raises(ObjectChanged):
        store.replace("node/a", b"three", first)
    assert store.replace("node/a", b"three", second) != second
    found = store.get("node/a")
    assert found is not None
    assert found.content == b"three"


def test_what_is_not_there_is_not_replaced(store: Metadata) -> None:
    gone = store.create("node/other", b"one")
    with pytest.raises(ObjectChanged):
        store.replace("node/a", b"two", Version(gone.etag, gone.number))
    assert store.get("node/a") is None


def test_of_many_threads_that_create_one_object_exactly_one_does(store: Metadata) -> None:
    won: list[int] = []

    def create(number: int) -> None:
        try:
            store.create("node/a", b"%d" % number)
            won.append(number)
        except ObjectExists:
            pass

    threads = [threading.Thread(target=create, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found = store.get("node/a")
    assert found is not None
    assert [int(found.content)] == won


def test_increments_of_several_processes_are_all_counted(store: Metadata, server: tuple[str, str], url: str) -> None:
    """`python -m tests.increments` is the long form."""
    if server[0] in ("memory", ALONE):
        threads, count = (16, 1000) if server[0] == "memory" else (4, 10)
        assert counted_in_threads(store, threads, count) == threads * count
        return
    # moto compares and puts in two steps, and its threads come in between: nobody else may write.
    processes, count = {"directory": (16, 20), "moto": (1, 10)}.get(server[0], (16, 50))
    assert counted_in_processes(store, url, processes, count, 240) == processes * count


@pytest.mark.parametrize("size_bytes", [0, 1, 100_000, MULTIPART_BYTES + PART_BYTES + 1], ids=str)
def test_large_objects_come_back_whole_and_in_ranges(store: ObjectStore, size_bytes: int) -> None:
    content = os.urandom(1000) * (size_bytes // 1000) + b"x" * (size_bytes % 1000)
    parts = [content[at : at + PART_BYTES] for at in range(0, size_bytes, PART_BYTES)]
    store.put("node/topic/large", parts, size_bytes)
    info = store.head("node/topic/large")
    assert info is not None
    assert info.size_bytes == size_bytes
    found = store.get("node/topic/large")
    assert found is not None
    assert found.content == content
    if size_bytes > 100:
        ranges = [(0, 10), (size_bytes - 7, size_bytes), (50, 60)]
        assert store.get_ranges("node/topic/large", ranges) == [content[start:end] for start, end in ranges]
        assert b"".join(store.read("node/topic/large", 50, size_bytes - 7)) == content[50:-7]
        assert b"".join(store.read("node/topic/large", 50, size_bytes + 7)) == content[50:]


def test_the_same_put_again_changes_nothing(store: ObjectStore) -> None:
    store.put("node/a", [b"content"], 7)
    store.put("node/a", [b"content"], 7)
    found = store.get("node/a")
    assert found is not None
    assert found.content == b"content"
    assert [info.key for info in store.objects("")] == ["node/a"]


def test_forwarders_that_share_a_prefix_write_each_bundle_once(url: str) -> None:
    with ParquetFiles(url) as one, ParquetFiles(url) as other, ThreadPoolExecutor() as pool:
        for _ in pool.map(lambda files: offer(files, *map(Stored, range(20))), (one, other)):
            pass
        assert one.statistics().rows + other.statistics().rows == 20
        offer(other, *map(Stored, range(15, 25)))
    store = open_store(url)
    found = [store.get(info.key) for info in store.objects("slot_0") if info.key.endswith(".parquet")]
    tables = [pq.read_table(pa.BufferReader(each.content)) for each in found if each is not None]
    assert sorted(pa.concat_tables(tables).column("n").to_pylist()) == list(range(25))


def test_listings_show_what_lies_below_a_prefix(store: ObjectStore) -> None:
    for key in ("a/x/1", "a/x/2", "a/y/3", "ab/4"):
        store.create(key, b"content")
    assert sorted(info.key for info in store.objects("a")) == ["a/x/1", "a/x/2", "a/y/3"]
    assert sorted(info.key for info in store.objects("")) == ["a/x/1", "a/x/2", "a/y/3", "ab/4"]
    assert list(store.objects("nothing")) == []
    assert store.directories("") == ["a", "ab"]
    assert store.directories("a") == ["x", "y"]
    assert {info.size_bytes for info in store.objects("a")} == {7}
    store.create("a/0", b"content")
    store.create("top", b"content")
    assert [info.key for info in store.children("")] == ["top"]
    assert [info.key for info in store.children("a")] == ["a/0"]
    assert sorted(info.key for info in store.children("a/x")) == ["a/x/1", "a/x/2"]
    assert store.children("nothing") == []


def test_keys_of_one_part_are_keys_as_others_are(store: ObjectStore) -> None:
    version = store.create("top", b"one")
    with pytest.raises(ObjectExists):
        store.create("top", b"two")
    store.replace("top", b"three", version)
    with pytest.raises(ObjectChanged):
        store.replace("top", b"four", version)
    store.delete("top")
    assert list(store.objects("")) == []


def test_of_several_who_decide_one_is_heard_by_all(store: ObjectStore, server: tuple[str, str]) -> None:
    # moto compares and puts in two steps, and its threads come in between: one after the other, then.
    deciders = 1 if server[0] == "moto" else 4

    def decide(number: int) -> Decision:
        log = Decisions("log", by=str(number), files=StoreFiles("log", store=store))
        try:
            return log.abort("t", 0) if number % 2 else log.commit("t", 0, [])
        except TransactionAborted:
            found = log.newest("t")
            assert found is not None
            return found

    with ThreadPoolExecutor(deciders) as threads:
        heard = list(threads.map(decide, range(4)))
    assert {decision.by for decision in heard} == {heard[0].by}
    log = Decisions("log", files=StoreFiles("log", store=store))
    assert log.newest("t") == heard[0]
    log.remove("t")
    assert log.newest("t") is None
    assert [info.key for info in store.objects("")] == ["_log.json"]


def test_nodes_announce_themselves_and_leave(store: ObjectStore) -> None:
    directory = MemberDirectory("nodes", entries=StoreEntries(store))
    with pytest.raises(DiskError, match="there is no such directory of nodes"):
        directory.leave("node-a")
    for member in (Member("node-b", "grpc://b:1"), Member("node-a", "grpc://a:1"), Member("node-b", "grpc://b:2")):
        directory.announce(member)
    store.create("_quiver_decisions/u.0.json", b"no entry of a node")
    found = directory.members().values()
    assert [(member.node, member.location) for member in found] == [("node-a", "grpc://a:1"), ("node-b", "grpc://b:2")]
    for node in ("node-a", "node-b", "node-b"):
        directory.leave(node)
    assert directory.members() == {}


def test_deleted_objects_are_gone_and_may_be_deleted_again(store: ObjectStore) -> None:
    store.create("node/a", b"content")
    store.delete("node/a")
    store.delete("node/a")
    assert store.get("node/a") is None
    assert store.head("node/a") is None
    with pytest.raises(ObjectMissing):
        store.get_ranges("node/a", [(0, 1)])
    with pytest.raises(ObjectMissing):
        list(store.read("node/a", 0, 1))


def test_another_opening_of_the_url_sees_the_same(store: ObjectStore, url: str) -> None:
    store.create("node/a", b"content")
    other = open_store(url)
    found = other.get("node/a")
    other.close()
    assert found is not None
    assert found.content == b"content"


def test_what_a_killed_writer_left_is_cleared(store: ObjectStore, server: tuple[str, str], tmp_path: Path) -> None:
    if server[0] == "directory":
        root = Path(store.url.removeprefix("file://"))
        (root / "node/.tmp").mkdir(parents=True)
        (root / "node/.tmp/half").write_bytes(b"half")
    store.create("node/a", b"content")
    assert [info.key for info in store.objects("")] == ["node/a"]
    store.clear_unfinished("node")
    if server[0] == "directory":
        assert list((root / "node/.tmp").iterdir()) == []
