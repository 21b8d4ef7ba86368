"""One read over archive, disk and open log, through a client of a running node, while segments are sealed, archived and deleted."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from quiver_actors.base.model import BundleId
from quiver_actors.client import Client
from quiver_actors.errors import ChecksumMismatch, NotStored
from tests.integration.capped_node import wait_until
from tests.integration.client_node import ClientNode
from tests.integration.test_archive import archiver_pids, archiving_node

MORE = """
keep_local_size = "250KiB"
[topics.wide.slots]
page = 0
view = 1
"""
PUSHED = 120
ROWS = 600


def bundle(number: int) -> dict[str | int, pa.RecordBatch]:
    """About 20 KiB: three of them fill a segment."""
    return {
        "page": pa.record_batch({"id": pa.array([number] * ROWS, pa.int64()), "name": [f"{number}" * 4] * ROWS}),
        "view": pa.record_batch({"id": pa.array([number], pa.int64())}),
    }


def push(client: Client, count: int) -> None:
    """One after the other: what is pushed together goes into one segment."""
    for number in range(count):
        client.push(bundle(number), topic="wide")


def first_on_disk(client: Client) -> int:
    """The number of the oldest segment on the disk."""
    return min((info.segment_seq for info in client.segments("wide")[0]), default=0)


def ids(client: Client, start: BundleId | None = None, end: BundleId | None = None) -> list[int]:
    return [each["view"].column(0)[0].as_py() for each in client.read("wide", 0, start, end)]


def beginning() -> BundleId:
    return BundleId("wide", 0, 0, 0)


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClientNode]:
    directory = tmp_path_factory.mktemp("archived")
    with archiving_node(f"file://{directory}/archive", MORE) as node, node.connect() as client:
        push(client, PUSHED)
        wait_until(lambda: first_on_disk(client) > 5, "archived segments have left the disk", 60)
        yield node


def test_a_range_goes_from_the_archive_over_the_disk_into_the_open_log(node: ClientNode) -> None:
    with node.connect() as client:
        assert client.readable("wide")[0].unsealed
        on_disk = ids(client)
        assert 0 < len(on_disk) < PUSHED
        assert ids(client, beginning()) == list(range(PUSHED))
        for number, found in enumerate(client.read("wide", 0, beginning(), slots=["page"], columns={"page": ["name"]})):
            assert dict(found.slots) == {0: bundle(number)["page"].select(["name"])}
            assert found.bundle_id.core == 0
            assert found.ingestion_unix_ns
            assert found.incarnation


def test_ranges_inside_the_archive_and_across_its_border(node: ClientNode) -> None:
    with node.connect() as client:
        whole = [each.bundle_id for each in client.read("wide", 0, beginning())]
        border = next(n for n, each in enumerate(whole) if each.segment_seq == first_on_disk(client))
        for first, end in ((0, 1), (2, 7), (border - 2, border), (border - 2, border + 2), (border, border + 4)):
            found = [each.bundle_id for each in client.read("wide", 0, whole[first], whole[end])]
            assert found == whole[first:end]
        with pytest.raises(NotStored):
            client.read("wide", 0, beginning(), BundleId("wide", 0, 1000, 0))


def test_a_part_of_a_segment_that_is_gone_is_read(node: ClientNode) -> None:
    with node.connect() as client:
        reader = client.read_part(0, "wide", 1, 0, 1)
        expected = next(client.read("wide", 0, BundleId("wide", 0, 1, 0)))
        assert reader.bundle(0) == dict(expected.slots)
        with pytest.raises(NotStored):
            client.read_part(0, "wide", 1000, 0, 1)


def test_a_read_goes_on_when_the_archiver_is_killed(node: ClientNode) -> None:
    with node.connect() as client:
        found = []
        for number, each in enumerate(client.read("wide", 0, beginning())):
            found.append(each["view"].column(0)[0].as_py())
            if number == 4:
                (pid,) = archiver_pids(node)
                os.kill(pid, signal.SIGKILL)
                wait_until(lambda old=pid: archiver_pids(node) != [old], "it is gone")  # type: ignore[misc]
        assert found == list(range(PUSHED))


def test_a_read_waits_for_the_archiver_of_a_node_that_has_just_started(node: ClientNode) -> None:
    node.kill_supervisor()
    node.restart()
    with node.connect() as client:
        assert ids(client, beginning()) == list(range(PUSHED))


def test_reads_are_right_while_segments_are_sealed_archived_and_deleted(tmp_path: Path) -> None:
    with archiving_node(f"file://{tmp_path}/archive", MORE) as node, node.connect() as client:
        pushed = 0
        is_done = threading.Event()
        failures: list[str] = []

        def read() -> None:
            with node.connect() as reading:
                while not is_done.is_set():
                    before = pushed
                    found = ids(reading, beginning()) if before else []
                    if found != list(range(len(found))) or len(found) < before:
                        failures.append(f"{before} were pushed: {found}")
                        return

        threads = [threading.Thread(target=read) for _ in range(2)]
        for thread in threads:
            thread.start()
        for number in range(PUSHED):
            client.push(bundle(number), topic="wide")
            pushed += 1
        wait_until(lambda: first_on_disk(client) > 5, "archived segments have left the disk", 60)
        is_done.set()
        for thread in threads:
            thread.join()
        assert failures == []
        assert ids(client, beginning()) == list(range(PUSHED))


def test_damage_in_the_archive_is_told_and_what_is_whole_is_read(tmp_path: Path) -> None:
    with archiving_node(f"file://{tmp_path}/archive", MORE) as node, node.connect() as client:
        push(client, 60)
        wait_until(lambda: first_on_disk(client) > 2, "archived segments have left the disk", 60)
        (path,) = (tmp_path / "archive").glob("anode/wide/*/core_0/00000000000000000001.0.qseg")
        path.write_bytes(bytes(path.stat().st_size))
        for each in client.read("wide", 0, beginning()):
            if each.bundle_id.segment_seq == 1:
                with pytest.raises(ChecksumMismatch):
                    each.slots  # noqa: B018 - a property that raises
            else:
                assert each["view"].num_rows == 1
