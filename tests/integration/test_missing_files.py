"""Files that somebody deletes, of a stopped node and of a running one: subscribers are told what they lose, and health says so."""

from __future__ import annotations

import errno
import json
from pathlib import Path

from quiver_actors.base.units import KIB
from quiver_actors.client import Client, Delivery, GapNotice
from quiver_actors.client.subscription import GapSubscription
from quiver_actors.store.disk.posix import PosixDisk
from tests.disks.faulty import FaultyDisk
from tests.integration.capped_node import wait_until
from tests.integration.client_node import ClientNode, client_node, first_id, numbers
from tests.support.commands import run_here
from tests.support.engine_driver import EngineDriver, topic_settings

BUNDLES = 3
LOGS = 4


def lay_out(data: Path) -> None:
    """Four logs that were not sealed, as a killed node leaves them; the second one is gone."""
    data.mkdir(mode=0o700)
    disk = FaultyDisk(PosixDisk(str(data)))
    disk.fail("truncate", 1, errno.ENOSPC, then=["truncate"])  # only a seal cuts a log
    driver = EngineDriver(disk, topic_settings(segment_target_size_bytes=4 * KIB, wal_max_rotated_files=8))
    driver.engine.registrations.register("ann", "earliest")
    for number in range(LOGS):
        driver.push_numbered(number * BUNDLES, BUNDLES)
        driver.commit()
        driver.engine.seal_now()
        driver.commit()
        driver.run_background()
    driver.flush_progress()
    driver.engine.close()
    logs = sorted(path for path in (data / "default/core_0/wal").iterdir() if path.name[-1].isdigit())
    assert len(logs) == LOGS
    logs[1].unlink()


def take_all(events: GapSubscription, count: int) -> tuple[list[Delivery], list[tuple[int, int, int | None, str]]]:
    deliveries: list[Delivery] = []
    told: list[tuple[int, int, int | None, str]] = []
    while len(deliveries) + len(told) < count:
        item = events.get(timeout=60)
        if isinstance(item, GapNotice):
            told.append((item.segment_seq, item.bundle_index_first, item.bundle_count, item.reason))
        elif item is not None:
            deliveries.append(item)
    return deliveries, told


def number_of(delivery: Delivery) -> int:
    found: int = delivery[0].column("number")[0].as_py()
    return found


def verified(data: Path) -> list[tuple[str, str]]:
    done = run_here("verify", "--data-dir", str(data), "--json")
    assert done.returncode == 5, done.stdout + done.stderr
    return [(found["code"], found["message"]) for found in json.loads(done.stdout)["findings"]]


def test_a_log_and_a_segment_that_are_gone_are_named_and_told() -> None:
    with client_node(prepare=lay_out, config="") as node:
        with node.connect() as client, client.subscribe("ann", gaps="deliver") as events:
            deliveries, told = take_all(events, (LOGS - 1) * BUNDLES + 1)
            assert told == [(1, 0, BUNDLES, "damaged")]
            assert [number_of(each) for each in deliveries] == [0, 1, 2, *range(6, 12)]
            for delivery in deliveries[:4]:
                delivery.ack()
            events.flush()
        node.kill_supervisor()
        (node.directories.data / "default/core_0/segments/0000000000000002.qseg").unlink()
        named = [message for code, message in verified(node.directories.data) if code == "progress.missing_segment"]
        assert len(named) == 1
        assert "2 bundles of segment 2" in named[0]
        node.restart()
        with node.connect() as client, client.subscribe("ann", gaps="deliver") as events:
            deliveries, told = take_all(events, BUNDLES + 1)
            assert told == [(2, 1, 2, "damaged")]
            assert [number_of(each) for each in deliveries] == [9, 10, 11]


def test_verify_names_a_log_that_is_gone_from_between_others(tmp_path: Path) -> None:
    lay_out(tmp_path / "data")
    (message,) = [message for code, message in verified(tmp_path / "data") if code == "log.gap"]
    assert "segment 1 with 3 bundles" in message


def health(node: ClientNode) -> tuple[int, str]:
    done = run_here("status", "--run-dir", str(node.directories.run), "--check", "healthy")
    return done.returncode, done.stderr


def push_segments(client: Client, segments: int) -> None:
    for number in range(segments):
        client.push_many([numbers(number * BUNDLES + n) for n in range(BUNDLES)])
        client.flush()


def segment_file(node: ClientNode, segment_seq: int) -> Path:
    return node.directories.data / f"default/core_0/segments/{segment_seq:016}.qseg"


def test_a_segment_that_is_deleted_under_a_running_node_is_told_at_once_and_health_says_so() -> None:
    with client_node(config="") as node, node.connect() as client:
        push_segments(client, 2)
        assert health(node)[0] == 0
        segment_file(node, 0).unlink()
        with client.subscribe("new", start="earliest", gaps="deliver") as events:
            deliveries, told = take_all(events, BUNDLES + 1)
        assert told == [(0, 0, BUNDLES, "damaged")]
        assert [first_id(each) for each in deliveries] == [3, 4, 5]
        wait_until(lambda: health(node)[0] == 4, "the health says that somebody deletes segments")
        assert "somebody has deleted 1 of its segments" in health(node)[1]
        with client.subscribe("later", start="earliest", gaps="deliver") as events:
            assert [first_id(each) for each in take_all(events, BUNDLES)[0]] == [3, 4, 5]


def test_a_directory_that_is_moved_under_a_running_node_is_a_fault_that_passes() -> None:
    with client_node(config="") as node, node.connect() as client:
        push_segments(client, 2)
        segments, aside = segment_file(node, 0).parent, node.directories.data / "default/aside"
        segments.rename(aside)
        with client.subscribe("new", start="earliest", gaps="deliver") as events:
            wait_until(lambda: health(node)[0] == 4, "the health says that a directory is gone")
            assert "topic default on core_0 is degraded" in health(node)[1]
            aside.rename(segments)
            deliveries, told = take_all(events, 2 * BUNDLES)
            assert told == []
            assert [first_id(each) for each in deliveries] == list(range(6))
        wait_until(lambda: health(node)[0] == 0, "the fault has passed")
