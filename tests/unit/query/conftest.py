"""An open store with a topic of two slots."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import quiver_actors
from quiver_actors import Store

SETTINGS = {
    "segment.max_open_duration": "1h",
    "topics": {"travel": {"slots": {"flights": 0, "weather": 1}}, "clicks": {}, "My-topic": {}},
}


@pytest.fixture
def data_dir(tmp_path: Path) -> Path:
    return tmp_path / "data"


@pytest.fixture
def store(data_dir: Path) -> Iterator[Store]:
    with quiver_actors.open(data_dir, settings=SETTINGS) as opened:
        yield opened
