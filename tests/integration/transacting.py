"""Staging and reading back, for tests of transactions on a real node."""

from __future__ import annotations

import time

import pyarrow as pa

from quiver_actors.client import Client
from quiver_actors.transactions import Token

PATIENCE_SECONDS = 60.0


def numbers(*values: int) -> pa.RecordBatch:
    return pa.record_batch({"n": pa.array(values, pa.int64())})


def visible(client: Client, topic: str = "default") -> list[int]:
    """Return all visible bundles, core by core."""
    client.flush(topic)
    found = []
    for core, infos in client.segments(topic).items():
        for info in infos:
            reader = client.read_segment(core, topic, info.segment_seq)
            for index in range(info.bundle_count):
                found += reader.bundle(index)[0].column(0).to_pylist()
    return found


def states(client: Client, topic: str = "default") -> list[str]:
    return [info.state for infos in client.staged(topic).values() for info in infos]


def eventually(client: Client, wanted: object, topic: str = "default") -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while (found := (sorted(visible(client, topic)), states(client, topic))) != wanted:
        assert time.monotonic() < deadline, f"expected {wanted}, found {found}"


def stage(client: Client, txn_id: str, *values: int, **options: object) -> Token:
    with client.stage(txn_id, **options) as staged:  # type: ignore[arg-type]
        for value in values:
            staged.push(numbers(value), item_count=value)
        token = staged.prepare()
    assert token is not None
    return token
