"""Somebody removes `wal/` below a running node."""

from __future__ import annotations

import shutil

import pytest

from quiver_actors.errors import DurabilityUnknown
from tests.integration.client_node import client_node, first_id, numbers, take

CONFIG = ""
"""Segments of the usual size and age: the log that is removed is not rotated in this test."""


def test_a_push_after_the_log_was_removed_is_not_acknowledged_and_the_node_goes_on() -> None:
    with client_node(config=CONFIG) as node, node.connect() as client:
        client.push(numbers(1))
        shutil.rmtree(node.directories.data / "default/core_0/wal")
        with pytest.raises(DurabilityUnknown):
            client.push(numbers(2))
        assert "somebody removed the log" in node.process.wait_for("engine.failed")
        node.wait_worker_ready(0)
        client.push(numbers(3))
        with client.subscribe("late", start="earliest") as subscription:
            assert first_id(*take(subscription, 1)) == 3
