"""The archiver of a real node is in nobody's way, and shows how far it is behind."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from quiver_actors.node.archiver_process import NICENESS
from tests.integration.capped_node import wait_until
from tests.integration.client_node import numbers
from tests.integration.test_archive import archiver_pids, archiving_node, push, status_of
from tests.support.object_servers import moto


def test_it_gives_way_to_the_workers(tmp_path: Path) -> None:
    with archiving_node(f"file://{tmp_path}/archive") as node, node.connect() as client:
        client.push(numbers(1))
        client.flush(until="archived", timeout=60)
        own = os.getpriority(os.PRIO_PROCESS, 0)
        (archiver,) = archiver_pids(node)
        threads = [int(each) for each in os.listdir(f"/proc/{archiver}/task")]
        assert {os.getpriority(os.PRIO_PROCESS, each) for each in threads} == {min(19, own + NICENESS)}
        assert {os.sched_getscheduler(each) for each in threads} == {os.SCHED_BATCH}
        assert os.getpriority(os.PRIO_PROCESS, node.pids[0]) == own


def test_how_far_it_is_behind_is_shown_while_a_request_hangs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    server = moto(tmp_path)
    try:
        for name, value in server.environment.items():
            monkeypatch.setenv(name, value)
        with archiving_node(f"{server.url}/away", 'request_timeout = "5m"\n') as node, node.connect() as client:
            client.push(numbers(0))
            client.flush(until="archived", timeout=60)
            server.pause()
            for number in range(1, 5):
                push(client, range(number, number + 1))
            wait_until(
                lambda: (found := status_of(node)) is not None and found.lag_segments == 4, "the lag to be shown"
            )
            server.resume()
            wait_until(lambda: (found := status_of(node)) is not None and not found.lag_segments, "it to catch up", 60)
            client.flush(until="archived", timeout=60)
    finally:
        server.stop()
