"""Files of a stopped node that are gone when it is started again: `quiver verify` names them, and subscribers are told what they lose."""

from __future__ import annotations

import errno
import json
from pathlib import Path

from quiver_actors.client import Delivery, GapNotice
from quiver_actors.client.subscription import GapSubscription
from quiver_actors.disk.faulty import FaultyDisk
from quiver_actors.disk.posix import PosixDisk
from quiver_actors.units import KIB
from tests.integration.client_node import client_node
from tests.integration.node_process import run_quiver
from tests.support.engine_driver import EngineDriver, topic_settings

BUNDLES = 3
LOGS = 4


def lay_out(data: Path) -> None:
    """Four logs that were not sealed, as a killed node leaves them; the second one is gone."""
    data.mkdir(mode=0o700)
    disk = FaultyDisk(PosixDisk(str(data)))
    disk.fail("truncate", 1, errno.ENOSPC, then=["truncate"])  # only a seal cuts a log
    driver = EngineDriver(disk, topic_settings(segment_target_size_bytes=4 * KIB, wal_max_rotated_files=8))
    driver.engine.register("ann", "earliest")
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
    done = run_quiver("verify", "--data-dir", str(data), "--json")
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
