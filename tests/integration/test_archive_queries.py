"""Datasets, SQL, exports and asyncio over archive, disk and open log of a running node, and over an archive without one."""

from __future__ import annotations

import asyncio
import datetime
import json
import threading
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.flight as fl
import pyarrow.parquet as pq
import pytest

import quiver_actors
from quiver_actors import aio
from quiver_actors.base.model import BundleId
from quiver_actors.cli.main import main
from quiver_actors.client import Client
from quiver_actors.errors import UsageError
from quiver_actors.flight.local import LocalNode
from quiver_actors.flight.server import NodeServer
from tests.integration.capped_node import wait_until
from tests.integration.client_node import ClientNode
from tests.integration.test_archive import archiving_node
from tests.integration.test_archive_one_read import MORE, PUSHED, beginning, bundle, first_on_disk, ids, push

LONG_AGO = datetime.datetime(2000, 1, 1, tzinfo=datetime.UTC)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("asked")


@pytest.fixture(scope="module")
def node(place: Path) -> Iterator[ClientNode]:
    with archiving_node(f"file://{place}/archive", MORE) as node, node.connect() as client:
        push(client, PUSHED)
        wait_until(lambda: first_on_disk(client) > 5, "archived segments have left the disk", 60)
        yield node


def viewed(table: pa.Table) -> list[int]:
    return list(table.column("id").to_pylist())


def time_of(client: Client, number: int) -> int:
    """When a bundle was ingested."""
    found = [each.ingestion_unix_ns for each in client.read("wide", 0, beginning())][number]
    assert found is not None
    return found


def test_a_dataset_begins_where_the_disk_does_or_in_the_archive(node: ClientNode) -> None:
    with node.connect() as client:
        on_disk = viewed(client.dataset("wide", "view").to_table())
        assert on_disk == list(range(PUSHED - len(on_disk), PUSHED))
        assert len(on_disk) < PUSHED
        for start in (0, LONG_AGO, beginning()):
            dataset = client.dataset("wide", "view", start=start)
            assert viewed(dataset.to_table()) == list(range(PUSHED))
            assert viewed(dataset.to_table()) == list(range(PUSHED))
            assert dataset.count_rows() == PUSHED
        pages = client.dataset("wide", "page", start=0).to_table(columns=["name"], filter=pc.field("id") == 3)
        assert pages.equals(pa.table([bundle(3)["page"].column("name")], names=["name"]))


def test_bounds_lie_in_the_archive_and_metadata_says_where_a_row_is_stored(node: ClientNode) -> None:
    with node.connect() as client:
        whole = [each.bundle_id for each in client.read("wide", 0, beginning())]
        assert whole[10].segment_seq < first_on_disk(client)
        assert viewed(client.dataset("wide", "view", start=whole[10]).to_table()) == list(range(10, PUSHED))
        assert viewed(client.dataset("wide", "view", start=whole[2], end=whole[11]).to_table()) == list(range(2, 11))
        since, until = time_of(client, 4), time_of(client, 9)
        assert viewed(client.dataset("wide", "view", start=since, end=until).to_table()) == list(range(4, 9))
        dataset = client.dataset("wide", "view", start=0, metadata=True)
        rows = dataset.to_table().to_pylist()
        assert [(row["_quiver_segment"], row["_quiver_bundle"]) for row in rows] == [each[2:] for each in whole]
        of_one = dataset.to_table(filter=pc.field("_quiver_segment") == whole[0].segment_seq)
        assert viewed(of_one) == [number for number, each in enumerate(whole) if each.segment_seq == 0]


def test_sql_begins_where_the_disk_does_or_in_the_archive(node: ClientNode) -> None:
    statement = "SELECT count(*) AS n, sum(p.id) AS total FROM wide.page p JOIN wide.view v ON p.id = v.id"
    with node.connect() as client:
        for engine in ("duckdb", "datafusion"):
            (found,) = client.sql(statement, start=0, engine=engine).read_all().to_pylist()
            assert found == {"n": PUSHED * 600, "total": 600 * sum(range(PUSHED))}
        (less,) = client.sql(statement).read_all().to_pylist()
        assert less["n"] < PUSHED * 600
        with pytest.raises(UsageError, match="of one topic"):
            client.sql(statement, start=beginning())


def test_commands_begin_in_the_archive(node: ClientNode, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    where = ["--run-dir", str(node.directories.run)]
    statement = "SELECT count(*) AS n FROM wide.view"
    assert main(["query", *where, statement, "--from", "2000-01-01T00:00Z", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"n": PUSHED}
    assert main(["query", *where, statement, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["n"] < PUSHED
    tail = ["tail", *where, "wide", "--slot", "view", "--rows", "1", "--json", "--until-idle", "500ms"]
    assert main([*tail, "--from", "2000-01-01T00:00Z"]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line["slots"]["view"]["values"][0]["id"] for line in lines] == list(range(PUSHED))
    out = ["--slot", "view", "--out", str(tmp_path)]
    assert main(["export", *where, "wide", "--from", "2000-01-01T00:00Z", *out]) == 0
    assert viewed(pq.read_table(tmp_path / "wide-view.parquet")) == list(range(PUSHED))
    with node.connect() as client:
        seconds, nanoseconds = divmod(time_of(client, 7), 1_000_000_000)
    since = datetime.datetime.fromtimestamp(seconds, datetime.UTC) + datetime.timedelta(
        microseconds=nanoseconds // 1000
    )
    assert main(["export", *where, "wide", "--from", since.isoformat(), "--format", "arrow", *out]) == 0
    assert viewed(pa.ipc.open_file(tmp_path / "wide-view.arrow").read_all()) == list(range(7, PUSHED))


def test_asyncio_reads_archive_disk_and_open_log(node: ClientNode) -> None:
    async def look() -> None:
        async with aio.connect(str(node.directories.run)) as client:
            found = [each async for each in client.read("wide", 0, beginning(), slots=["view"])]
            assert [each["view"].column(0)[0].as_py() for each in found] == list(range(PUSHED))
            reader = await client.read_part(0, "wide", 1, 0, 1)
            assert reader.bundle(0) == dict(next(node_read))
            assert (await client.archived("wide"))[0][0].segment_seq == 0
            dataset = await client.dataset("wide", "view", start=0)
            assert viewed(await asyncio.to_thread(dataset.to_table)) == list(range(PUSHED))
            reader = await client.sql("SELECT count(*) AS n FROM wide.view", start=0)
            assert reader.read_all().to_pylist() == [{"n": PUSHED}]

    with node.connect() as client:
        node_read = (each.slots for each in client.read("wide", 0, BundleId("wide", 0, 1, 0)))
        asyncio.run(look())
    with pytest.raises(UsageError, match="to_thread"):
        aio.open_archive("file:///nowhere")


def test_other_hosts_begin_in_the_archive(node: ClientNode) -> None:
    with (
        node.connect() as client,
        NodeServer(LocalNode("anode", lambda: client), "grpc://127.0.0.1:0") as server,
        quiver_actors.connect_remote(f"grpc://127.0.0.1:{server.port}") as remote,
    ):
        asker = fl.connect(f"grpc://127.0.0.1:{server.port}")

        def flight(*path: str) -> list[int]:
            info = asker.get_flight_info(fl.FlightDescriptor.for_path(*path))
            assert [part.decode() for part in info.descriptor.path] == list(path)
            return viewed(asker.do_get(info.endpoints[0].ticket).read_all())

        for on_disk in (flight("wide", "view"), viewed(remote.sql("FROM wide.view").read_all())):
            assert 0 < len(on_disk) < PUSHED
            assert on_disk == list(range(PUSHED - len(on_disk), PUSHED))
        assert flight("wide", "view", "earliest") == list(range(PUSHED))
        assert flight("wide", "view", "2000-01-01T00:00Z", "") == list(range(PUSHED))
        since, until = time_of(client, 4), time_of(client, 9)
        assert flight("wide", "view", str(since), str(until)) == list(range(4, 9))
        for path in (["wide", "view", "yesterday"], ["wide", "view", "2000-01-01"], ["wide", "view", "0", "1", "2"]):
            with pytest.raises(pa.ArrowException, match=r"is no time of a flight|names no flight"):
                flight(*path)

        def statement(**asked: object) -> list[int]:
            command = json.dumps({"sql": "FROM wide.view", **asked})
            info = asker.get_flight_info(fl.FlightDescriptor.for_command(command))
            return viewed(asker.do_get(info.endpoints[0].ticket).read_all())

        assert statement() == flight("wide", "view")
        assert statement(start="earliest") == list(range(PUSHED))
        assert statement(start=since, end=str(until)) == list(range(4, 9))
        with pytest.raises(pa.ArrowException, match=r"quiver:usage.*is no time of a flight"):
            statement(start="yesterday")
        found = remote.read("wide", 0, beginning(), slots=["view"])
        assert [each["view"].column(0)[0].as_py() for each in found] == list(range(PUSHED))
        assert viewed(remote.dataset("wide", "view", start=0).to_table()) == list(range(PUSHED))
        assert viewed(remote.sql("FROM wide.view", start=since, end=until).read_all()) == list(range(4, 9))


def test_an_archive_is_asked_without_a_node(node: ClientNode, place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    url = f"file://{place}/archive"
    with quiver_actors.open_archive(url) as archive, node.connect() as client:
        archived = [each["view"].column(0)[0].as_py() for each in archive.read("wide", 0)]
        assert len(archived) > 10
        dataset = archive.dataset("wide", "view", where="id >= 5")
        assert viewed(dataset.to_table()) == archived[5:]
        since = time_of(client, 8)
        assert viewed(archive.dataset("wide", "view", start=since).to_table()) == archived[8:]
        (found,) = archive.sql("SELECT count(*) AS n FROM wide.view WHERE id < 3").read_all().to_pylist()
        assert found == {"n": 3}
        (found,) = archive.sql("SELECT sum(bundles) AS n FROM quiver.segments").read_all().to_pylist()
        assert found == {"n": len(archived)}
    assert main(["query", "--archive", url, "--node", "anode", "SELECT count(*) AS n FROM wide.view", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["n"] >= len(archived)


def test_snapshots_are_whole_while_segments_are_sealed_archived_and_deleted(tmp_path: Path) -> None:
    with archiving_node(f"file://{tmp_path}/archive", MORE) as node, node.connect() as client:
        client.push(bundle(0), topic="wide")
        pushed = 1
        is_done = threading.Event()
        failures: list[str] = []
        looks = [0, 0]

        def look(place: int) -> None:
            with node.connect() as reading:
                while not is_done.is_set():
                    before = pushed
                    try:
                        dataset = reading.dataset("wide", "view", start=0 if place else beginning())
                        found, again = viewed(dataset.to_table()), viewed(dataset.to_table())
                    except Exception as error:
                        failures.append(f"{before} were pushed: {error!r}")
                        raise
                    looks[place] += 1
                    if found != again or found != list(range(len(found))) or len(found) < before:
                        failures.append(f"{before} were pushed: {found}, {again}")
                        return

        threads = [threading.Thread(target=look, args=(place,)) for place in range(2)]
        for thread in threads:
            thread.start()
        for number in range(1, PUSHED):
            client.push(bundle(number), topic="wide")
            pushed += 1
        wait_until(lambda: first_on_disk(client) > 5, "archived segments have left the disk", 60)
        is_done.set()
        for thread in threads:
            thread.join()
        assert failures == []
        assert min(looks) > 0
        assert ids(client, beginning()) == list(range(PUSHED))


def test_a_known_subscriber_does_not_begin_anew_in_the_archive(node: ClientNode) -> None:
    with node.connect() as client:
        newest = time_of(client, PUSHED - 1)
        for name in ("early", "timely"):
            with client.subscribe(name, topic="wide", start="earliest" if name == "early" else newest) as deliveries:
                assert deliveries.get(10)
            # A known one has begun: its start says nothing any more.
            with client.subscribe(name, topic="wide", start=0) as deliveries:
                assert (first := deliveries.get(10)) is not None
                assert first.bundle_id.segment_seq >= first_on_disk(client)
            client.unsubscribe(name, topic="wide")
