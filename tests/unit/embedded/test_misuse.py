"""What a store says to somebody who holds it wrong, and that nobody else suffers for it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import quiver_actors
from quiver_actors.base.model import BundleId
from quiver_actors.embedded import Store
from quiver_actors.errors import ConfigError, UsageError
from tests.unit.embedded.batches import numbered, stored

WRONG_CALLS: dict[str, tuple[Callable[[Any], object], str]] = {
    "flush": (lambda store: store.flush(3), "topic=3 is not possible: Expected `str`, got `int`"),
    "segments": (lambda store: store.segments(None), "topic=None is not possible"),
    "dataset": (lambda store: store.dataset(["default"]), r"topic=\['default'\] is not possible"),
    "subscribers": (lambda store: store.subscribers(object()), "topic=<object .*> is not possible"),
    "drop_stages": (lambda store: store.drop_stages("default", 0, 5, [1], ""), "incarnation=5 is not possible"),
    "stage": (lambda store: store.stage("t", partition="first"), "partition='first' is not possible"),
    "decide": (lambda store: store.decide("t", "first", None), "epoch='first' is not possible"),
    "read_part": (lambda store: store.read_part(0, "default", {}, 0, 1), "segment_seq={} is not possible"),
    "push": (
        lambda store: store.push(numbered(1), topic=3),
        "topic 3 does not exist on this node; its topics are default",
    ),
    "push_many": (lambda store: store.push_many(3), "cannot push the bundles of a int: expected a list"),
    "a row": (lambda store: store.push({"delay": 3}), r"to push a row, write \[\{'delay': ...\}\]"),
    "columns": (
        lambda store: store.push({"delay": [3]}),
        r"to push columns, write pa.record_batch\(\{'delay': ...\}\)",
    ),
    "a slot": (lambda store: store.push({"delays": numbered(1)}), "a topic gets names when it is created, as by"),
    "create_topic": (lambda store: store.create_topic(3), "topic id 3 is not allowed"),
    "set_topic": (lambda store: store.set_topic("default", "priority=1"), "expected them by key"),
    "unset": (lambda store: store.set_topic("default", {}, unset="priority"), "unset='priority' is one key"),
    "read": (
        lambda store: store.read("default", 0, start="yesterday"),
        "cannot begin or end at 'yesterday': expected a BundleId",
    ),
    "read elsewhere": (
        lambda store: store.read("default", 0, end=BundleId("other", 0, 0, 0)),
        "is not of topic 'default'",
    ),
    "claim": (lambda store: store.subscribe("s").claim(3), "3 is no bundle: expected a BundleId"),
    "subscribe": (lambda store: store.subscribe("s", columns="delay"), "columns='delay' is not possible"),
}


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    with quiver_actors.open(tmp_path_factory.mktemp("misuse") / "data") as opened:
        opened.push(numbered(0))
        yield opened


@pytest.mark.parametrize("call", WRONG_CALLS)
def test_a_wrong_argument_is_named_and_costs_the_store_nothing(store: Store, call: str) -> None:
    """A store hands requests over as they are: a wrong type would break the turn of its worker, and all users would wait for a recovery."""
    wrong, message = WRONG_CALLS[call]
    with pytest.raises(UsageError, match=message):
        wrong(store)
    assert store.status()["workers"][0]["restarts"] == 0
    assert stored(store) == [0]


def test_a_place_that_is_no_directory_is_refused_before_anything_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for path, message in (("", "is empty"), ("~/data", "nobody replaces the ~"), ("s3://bucket/data", "is a URL")):
        with pytest.raises(ConfigError, match=message):
            quiver_actors.open(path)
    with pytest.raises(ConfigError, match="expected them by key"):
        quiver_actors.open("data", settings=["cores=1"])  # type: ignore[arg-type]
    cold = {"topics": {"default": {"tier": {"cold_dir": str(tmp_path / "data" / "cold")}}}}
    with pytest.raises(ConfigError, match="is in data_dir"):
        quiver_actors.open("data", settings=cold)
    assert not list(tmp_path.iterdir())
