"""Layers of settings: who wins, where each value comes from, and what is refused in which words."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from quiver_actors.base.config.reading import examine, load_config, nearest_key, resolve
from quiver_actors.base.config.table import SETTINGS, Scope, settings_of
from quiver_actors.base.config.topic_values import read_topic_values, texts_by_key
from quiver_actors.base.units import MIB, MILLISECOND_NS
from quiver_actors.errors import ConfigError


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "quiver.toml"
    path.write_text(
        """
        cores = 3
        [segment]
        target_size = "8MiB"
        [topics.Clicks]
        wal.flush_interval = "25ms"
        allowed_uids = [7, 5, 7]
        [topics.Clicks.slots]
        page = 0
        """
    )
    return path


def test_flags_win_over_the_environment_over_the_file_over_defaults(file: Path) -> None:
    environment = {"QUIVER_CORES": "4", "QUIVER_SEGMENT__TARGET_SIZE": "16MiB", "OTHER": "x"}
    resolved = resolve(str(file), {"cores": 5, "data_dir": None}, environment)
    assert resolved.settings.cores == 5
    assert resolved.settings.topics["default"].segment.target_size_bytes == 16 * MIB
    keys = settings_of(Scope.NODE) | settings_of(Scope.TOPIC)
    found = {key: resolved.origin(keys[key]) for key in ("cores", "segment.target_size", "data_dir")}
    assert found == {
        "cores": "flag --cores",
        "segment.target_size": "environment QUIVER_SEGMENT__TARGET_SIZE",
        "data_dir": "default",
    }


def test_a_topic_has_its_own_settings_and_the_rest_from_the_top_of_the_file(file: Path) -> None:
    resolved = resolve(str(file), environment={})
    topic = resolved.settings.topics["Clicks"]
    assert (topic.name, topic.wal.flush_interval_ns) == ("Clicks", 25 * MILLISECOND_NS)
    assert (topic.segment.target_size_bytes, topic.slots, topic.allowed_uids) == (8 * MIB, {"page": 0}, (5, 7))
    keys = settings_of(Scope.TOPIC)
    assert resolved.origin(keys["segment.target_size"], "Clicks") == f"file {file}"
    assert resolved.origin(keys["orphan_ttl"], "Clicks") == "default"
    assert set(resolved.given("Clicks")) == {"wal.flush_interval", "allowed_uids", "slots"}


def test_the_environment_reaches_topics_slots_and_lists(file: Path) -> None:
    environment = {
        "QUIVER_TOPICS__CLICKS__SLOTS": "page=0,user=3",
        "QUIVER_TOPICS__CLICKS__ALLOWED_UIDS": f"{os.getuid()},9",
        "QUIVER_TOPICS__VIEWS__PRIORITY": "2",
    }
    settings = load_config(str(file), environment=environment)
    assert settings.topics["Clicks"].slots == {"page": 0, "user": 3}
    assert settings.topics["Clicks"].allowed_uids == tuple(sorted({os.getuid(), 9}))
    assert settings.topics["views"].priority == 2


def test_service_links_of_kubernetes_are_not_settings() -> None:
    links = {
        "QUIVER_PORT": "tcp://10.0.0.1:1",
        "QUIVER_SERVICE_HOST": "10.0.0.1",
        "QUIVER_METRICS_PORT_9464_TCP": "tcp://10.0.0.1:1",
    }
    assert load_config(None, environment=links) == load_config(None, environment={})
    with pytest.raises(ConfigError, match=r"environment QUIVER_CORS: key 'cors' is unknown; did you mean 'cores'\?"):
        load_config(None, environment={"QUIVER_CORS": "1"})


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("cores = '2'", "key 'cores': '2' is not what was expected (integer); expected a whole number, from 0 to 1024"),
        ("cores = true", "key 'cores': True is not what was expected (integer)"),
        ("cores = -1", "key 'cores': -1 is out of range; expected a whole number, from 0 to 1024"),
        ("flush_interval = '1ms'", "key 'flush_interval' is unknown; did you mean 'wal.flush_interval'?"),
        ("[segments]\ntarget_size = 1", "key 'segments' is unknown; did you mean 'segment'?"),
        ("[topics.a.segment]\ntarget_siz = 1", "'topics.a.segment.target_siz' is unknown; did you mean 'topics.a.segment.target_size'?"),
        ("[topics.a]\ncores = 1", "key 'topics.a.cores' is unknown"),
        ("topics = 3", "key 'topics': expected a table such as [topics.clicks]"),
        ("[topics]\nclicks = 3", "key 'topics.clicks': expected a table such as [topics.clicks]"),
        ("[topics.'a/b']\npriority = 1", "key 'topics.a/b': topic id 'a/b' is not allowed"),
        ("[segment]\ntarget_size = '1KiB'", 'expected a size such as "32MiB" or "1.5GB", or a number of bytes, from "64KiB" to "1GiB"'),
        ("[slots]\na = 63", "key 'slots': {'a': 63} is not what was expected (slots): slot 'a' has id 63: expected 0..62"),
        ("owner = 'no such user'", "user 'no such user' does not exist on this machine"),
        ("[wal]\nmax_size = '40MiB'", "key 'topics.default.wal.max_size': 40MiB is less than two segments of 32MiB"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_named_with_place_key_and_expectation(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "quiver.toml"
    path.write_text(text)
    with pytest.raises(ConfigError) as refused:
        load_config(str(path), environment={})
    assert message in str(refused.value)


def test_all_problems_are_found_at_once(tmp_path: Path) -> None:
    path = tmp_path / "quiver.toml"
    path.write_text("croes = 2\narena_size = 'big'\n")
    resolved, problems = examine(str(path), environment={"QUIVER_CORES": "none"})
    assert resolved is None
    assert [problem.partition(": ")[0] for problem in problems] == [
        f"file {path}, line 1",
        f"file {path}, line 2",
        "environment QUIVER_CORES",
    ]


def test_problems_of_the_file_name_their_line(tmp_path: Path) -> None:
    path = tmp_path / "quiver.toml"
    path.write_text(
        """# a comment
cores = "two"

[segment]
target_size = "32MiB"
targetsize = "1MiB"   # twice
[topics.clicks]
allowed_uids = [
    1,
    -2,
]
wal.flush_intervall = "25ms"
slots = {page = 99}
"""
    )
    _, problems = examine(str(path), environment={})
    assert [problem.split("key '")[1].split("'")[0] for problem in problems] == [
        "cores",
        "segment.targetsize",
        "topics.clicks.allowed_uids",
        "topics.clicks.wal.flush_intervall",
        "topics.clicks.slots",
    ]
    assert [problem.partition(": ")[0].rpartition(" ")[2] for problem in problems] == ["2", "6", "8", "12", "13"]
    assert "did you mean 'topics.clicks.wal.flush_interval'?" in problems[3]


def test_contradictions_are_blamed_on_the_line_or_variable_that_gave_the_value(tmp_path: Path) -> None:
    path = tmp_path / "quiver.toml"
    path.write_text("cores = 2\n\n[wal]\nmax_size = '40MiB'\n[topics.a.segment]\ntarget_size = '8MiB'\n")
    _, problems = examine(str(path), environment={})
    assert [problem.partition(": ")[0] for problem in problems] == [f"file {path}, line 4"]
    _, problems = examine(str(path), environment={"QUIVER_WAL__MAX_SIZE": "4GiB", "QUIVER_RETENTION__SIZE_CAP": "1MiB"})
    assert [problem.partition(": ")[0] for problem in problems] == ["environment QUIVER_RETENTION__SIZE_CAP"]


@pytest.mark.parametrize(
    ("text", "keys"),
    [
        ("[archive]\nurl = 'memory://x'\nenabled = true\n", []),
        ("[archive]\nurl = 'memory://x'\nenabled = true\nkeep_local = '1h'\n", ["archive.keep_local"]),
        ("durability = 'archived'\n[archive]\nurl = 'memory://x'\nenabled = true\n", ["durability"]),
        ("data_dir = '/srv/data'\n[archive]\nurl = 'file:///srv/data/archive'\n", ["archive.url"]),
        ("data_dir = '/srv/a b'\n[archive]\nurl = 'file:///srv/a%20b'\n", ["archive.url"]),
        ("data_dir = '/srv/data'\n[archive]\nurl = 'file:///srv/data-archive'\n", []),
        ("data_dir = '/srv/data'\n[archive]\nurl = 's3://srv/data'\n", []),
    ],
)
def test_what_counts_as_archived_outlives_process_and_directory(tmp_path: Path, text: str, keys: list[str]) -> None:
    path = tmp_path / "quiver.toml"
    path.write_text(text)
    _, problems = examine(str(path), environment={})
    assert [problem.split("key '")[1].split("'")[0].removeprefix("topics.default.") for problem in problems] == keys


def test_a_setting_of_a_topic_is_read_from_text() -> None:
    texts = texts_by_key(["segment.target_size=8MiB", "slots=a=1,b=2", "priority=-3"])
    assert read_topic_values(texts) == {"segment.target_size": 8 * MIB, "slots": {"a": 1, "b": 2}, "priority": -3}
    assert read_topic_values({"slots": {"a": 1}, "priority": 3}) == {"slots": {"a": 1}, "priority": 3}
    with pytest.raises(ConfigError, match=r"key 'segment\.target' is unknown; did you mean 'segment\.target_size'"):
        read_topic_values({"segment.target": "8MiB"})
    with pytest.raises(ConfigError, match="expected KEY=VALUE"):
        texts_by_key(["priority"])


def test_the_names_of_the_design_documents_are_accepted(tmp_path: Path) -> None:
    path = tmp_path / "quiver.toml"
    path.write_text("path = '/somewhere'\n")
    assert load_config(str(path), environment={}).data_dir == "/somewhere"


def test_the_nearest_key_is_the_same_name_elsewhere_or_one_that_looks_alike() -> None:
    keys = [setting.key for setting in SETTINGS]
    assert nearest_key("wal.target_size", keys) == "segment.target_size"
    assert nearest_key("wal.flush_intervall", keys) == "wal.flush_interval"
    assert nearest_key("zzz", keys) is None


def test_a_byte_order_mark_is_no_setting_and_endless_nesting_no_traceback(tmp_path: Path) -> None:
    path = tmp_path / "quiver.toml"
    path.write_bytes(b"\xef\xbb\xbfcores = 3\r\n")
    assert load_config(str(path), environment={}).cores == 3
    path.write_text("slots = " + "[" * 5_000)
    with pytest.raises(ConfigError, match="nests too deeply"):
        load_config(str(path), environment={})
