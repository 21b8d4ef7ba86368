"""Every setting of a topic can be said in the file and by `quiver topics create|set`, holds, and survives a kill; what it does, it does."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from quiver_actors.base.config.table import Scope, Setting, settings_of
from quiver_actors.client import Client
from quiver_actors.errors import UnknownSlot
from tests.integration.client_node import ClientNode, client_node, numbers
from tests.support.commands import run_here
from tests.unit.node.worker.harness import until

FIRST = {
    "durability": "segment_only",
    "slots": "page=4,user=7",
    "owner": "4000",
    "allowed_uids": "4001,4002",
    "event_time": "at",
    "shared_subscribers": "billing,audit",
    "priority": "7",
    "progress_flush_interval": "30ms",
    "orphan_ttl": "2h",
    "segment.target_size": "2MiB",
    "segment.max_open_duration": "3s",
    "segment.max_unsynced_duration": "2s",
    "segment.max_stream_count": "9",
    "segment.max_bundle_count": "99",
    "segment.compaction": "off",
    "segment.statistics": "off",
    "segment.statistics_columns": "delay,carrier",
    "wal.flush_interval": "25ms",
    "wal.max_size": "64MiB",
    "wal.max_rotated_files": "5",
    "retention.min_free": "1MiB",
    "retention.size_cap_policy": "reject",
    "retention.cap_share": "50%",
    "retention.max_age": "3d",
    "retention.keep_for": "24h",
    "retention.steady_state_headroom": "4MiB",
    "retention.early_seal": "false",
    "retention.quarantine_cap": "7MiB",
    "archive.enabled": "true",
    "archive.require": "true",
    "archive.commit_interval": "100ms",
    "archive.max_delay": "30s",
    "archive.expire": "365d",
    "archive.keep_local": "24h",
    "archive.keep_local_size": "64MiB",
    "tier.cold_dir": "/nowhere/cold",
    "tier.keep_hot": "7",
    "tier.keep_hot_size": "128MiB",
    "tier.cold_cap": "2TiB",
}
THEN = {
    "durability": "wal",
    "owner": "4003",
    "allowed_uids": "4004",
    "event_time": "departed",
    "shared_subscribers": "exporter",
    "priority": "-7",
    "progress_flush_interval": "31ms",
    "orphan_ttl": "0ms",
    "segment.target_size": "1MiB",
    "segment.max_open_duration": "60s",
    "segment.max_unsynced_duration": "6s",
    "segment.max_stream_count": "8",
    "segment.max_bundle_count": "98",
    "segment.compaction": "auto",
    "segment.statistics": "auto",
    "segment.statistics_columns": "wind",
    "wal.flush_interval": "0ms",
    "wal.max_size": "32MiB",
    "wal.max_rotated_files": "4",
    "retention.min_free": "2MiB",
    "retention.size_cap_policy": "drop_oldest",
    "retention.cap_share": "25%",
    "retention.max_age": "0ms",
    "retention.keep_for": "0ms",
    "retention.steady_state_headroom": "0B",
    "retention.early_seal": "true",
    "retention.quarantine_cap": "8MiB",
    "archive.enabled": "false",
    "archive.require": "false",
    "archive.commit_interval": "1s",
    "archive.max_delay": "0ms",
    "archive.expire": "0ms",
    "archive.keep_local": "0ms",
    "archive.keep_local_size": "0B",
    "tier.cold_dir": "",
    "tier.keep_hot": "4",
    "tier.keep_hot_size": "0B",
    "tier.cold_cap": "0B",
}
SETTINGS = settings_of(Scope.TOPIC)


def in_the_file(archive: Path) -> str:
    """The first values as TOML, for a topic `written`."""
    lines = [f"{key} = {SETTINGS[key].kind.write(read(SETTINGS[key], text))}" for key, text in FIRST.items()]
    return f'[archive]\nurl = "file://{archive}"\n[topics.written]\n' + "\n".join(lines) + "\n"


def read(setting: Setting, text: str) -> Any:
    return setting.kind.read(setting.kind.from_text(text))


def as_json(values: dict[str, str]) -> dict[str, Any]:
    found = {key: read(SETTINGS[key], text) for key, text in values.items()}
    return {key: list(value) if isinstance(value, tuple) else value for key, value in found.items()}


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClientNode]:
    with client_node(config=in_the_file(tmp_path_factory.mktemp("archive"))) as running:
        yield running


@pytest.fixture
def client(node: ClientNode) -> Iterator[Client]:
    with node.connect() as connected:
        yield connected


def quiver(node: ClientNode, *words: str) -> Any:
    done = run_here(*words, "--json", "--run-dir", str(node.directories.run))
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)["topic"]


def said(values: dict[str, str]) -> list[str]:
    return [f"{key}={text}" for key, text in values.items()]


def test_the_tables_of_this_test_name_every_setting() -> None:
    assert set(FIRST) == set(SETTINGS)
    assert set(THEN) == {key for key, setting in SETTINGS.items() if not setting.fixed}
    assert all(read(SETTINGS[key], text) != SETTINGS[key].default for key, text in FIRST.items())
    assert all(read(SETTINGS[key], THEN[key]) != read(SETTINGS[key], FIRST[key]) for key in THEN)


def test_every_setting_is_taken_from_the_file(node: ClientNode) -> None:
    shown = quiver(node, "topics", "show", "written")
    assert shown["settings"] == as_json(FIRST)
    assert all(origin.startswith("file ") for origin in shown["origins"].values())
    assert set(shown["origins"]) == set(FIRST)


def test_every_setting_is_created_changed_taken_back_and_survives_a_kill(node: ClientNode) -> None:
    assert quiver(node, "topics", "create", "made", *said(FIRST))["settings"] == as_json(FIRST)
    changed = quiver(node, "topics", "set", "made", *said(THEN))
    assert changed["settings"] == as_json(FIRST | THEN)
    node.kill_supervisor()
    node.restart()
    shown = quiver(node, "topics", "show", "made")
    assert shown["settings"] == as_json(FIRST | THEN)
    assert set(shown["origins"].values()) == {"quiver topics"}
    unset = [word for key in THEN for word in ("--unset", key)]
    back = quiver(node, "topics", "set", "made", *unset)
    assert back["settings"] == {key: _plain(setting.default) for key, setting in SETTINGS.items()} | as_json(
        {"slots": FIRST["slots"]}
    )


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


def test_a_push_that_does_not_fit_the_slot_table_is_refused_by_name(client: Client) -> None:
    client.create_topic("slotted", {"slots": {"page": 4, "user": 7}})
    client.push({"page": numbers(1), 7: numbers(2)}, topic="slotted")
    with pytest.raises(
        UnknownSlot, match=r"'pages' is not in the topic's slot table: expected one of \['page', 'user'\]"
    ):
        client.push({"pages": numbers(1)}, topic="slotted")
    with pytest.raises(UnknownSlot, match=r"slot id 5 is not in the topic's slot table: expected one of \[4, 7\]"):
        client.push({5: numbers(1)}, topic="slotted")
    with pytest.raises(UnknownSlot, match="has the slots page, user"):
        client.push(numbers(1), topic="slotted")


def segments(client: Client, topic: str) -> int:
    return sum(len(each) for each in client.segments(topic).values())


def test_segments_are_sealed_by_size_and_by_age_as_each_topic_says(client: Client) -> None:
    client.create_topic(
        "by-size", {"segment.target_size": "64KiB", "segment.max_open_duration": "1h", "segment.compaction": "off"}
    )
    client.create_topic("by-age", {"segment.max_open_duration": "50ms", "segment.compaction": "off"})
    client.create_topic("neither", {"segment.max_open_duration": "1h"})
    batch = pa.record_batch({"x": pa.array(np.arange(2_000))})
    for _ in range(20):
        client.push(batch, topic="by-size")
    client.push(batch, topic="by-age")
    client.push(batch, topic="neither")
    until(lambda: segments(client, "by-size") >= 3, "segments of 64 KiB")
    until(lambda: segments(client, "by-age") == 1, "a segment of 50 ms")
    assert segments(client, "neither") == 0
