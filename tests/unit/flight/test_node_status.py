"""A token that names topics is told nothing of others."""

from __future__ import annotations

import json
from typing import Any

from quiver_actors.flight.node_status import visible

DOCUMENT: dict[str, Any] = {
    "node": {
        "state": "ready",
        "topics": ["open", "secret"],
        "problems": ["topic secret: recovering"],
        "warnings": ["secret waits"],
        "advice": ["look at secret"],
    },
    "workers": [{"core": 0, "state": "ready"}],
    "engines": [
        {"topic": topic, "core": 0, "state": "ready", "bundles_in": 1_000, "rows_in": 5} for topic in ("open", "secret")
    ],
    "errors": [{"core": 0, "message": "secret: no room"}],
    "retention": [{"topic": "secret", "core": 0}],
    "archives": [{"state": "waits", "error": "secret/0"}],
    "shared_memory": {"total_bytes": 7},
}


def test_what_is_about_other_topics_or_may_name_them_is_left_out() -> None:
    found = visible(DOCUMENT, lambda topic: topic == "open")
    assert "secret" not in json.dumps(found)
    assert found["node"]["topics"] == ["open"]
    assert [each["topic"] for each in found["engines"]] == ["open"]
    assert (found["workers"], found["shared_memory"]) == (DOCUMENT["workers"], DOCUMENT["shared_memory"])
    assert visible(DOCUMENT, lambda topic: True) == DOCUMENT
