"""The document of how a node is, for programs: of a store in this process, and as notebooks show it."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pyarrow as pa
import pytest

import quiver_actors
import quiver_actors.aio
from quiver_actors.errors import ClosedError
from quiver_actors.store.status.node_status import NodeStatus
from tests.unit.flight.test_node_status import DOCUMENT
from tests.unit.node.worker.harness import until


def test_a_store_says_how_it_is(tmp_path: Path) -> None:
    with quiver_actors.open(tmp_path / "data", settings={"topics": {"clicks": {}}}) as store:
        store.push(pa.record_batch({"id": [1, 2]}), topic="clicks")
        store.create_topic("more")
        until(
            lambda: sum(each["bundles_in"] for each in store.status()["engines"]) == 1, "figures are brought up to date"
        )
        found = store.status()
        assert set(found["node"]["topics"]) == {"default", "clicks", "more"}
        (clicks,) = (each for each in found["engines"] if each["topic"] == "clicks")
        assert (clicks["state"], clicks["bundles_in"], clicks["rows_in"]) == ("ready", 1, 2)
        assert found["node"]["data_dir"] == store.data_dir
    with pytest.raises(ClosedError):
        store.status()


def test_an_asynchronous_store_says_it_too(tmp_path: Path) -> None:
    async def look() -> NodeStatus:
        async with await quiver_actors.aio.open(tmp_path / "data") as store:
            return await store.status()

    assert [each["topic"] for each in asyncio.run(look())["engines"]] == ["default"]


def test_a_notebook_shows_states_and_problems() -> None:
    shown = NodeStatus(DOCUMENT)._repr_html_()
    for text in ("Node: ready", "worker 0", "topic open, core 0", "1,000 bundles in", "topic secret: recovering"):
        assert text in shown
