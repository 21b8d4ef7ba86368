from __future__ import annotations

import pytest

from quiver_actors.base.config import parse_config
from quiver_actors.base.units import GIB, MIB
from quiver_actors.errors import ConfigError


def test_compaction_and_the_low_water_mark_have_defaults_and_are_inherited_by_topics() -> None:
    settings = parse_config(
        {
            "segment": {"compaction": "off"},
            "retention": {"min_free": "1GiB"},
            "topics": {"clicks": {"retention": {"min_free": 0}}, "views": {"segment": {"compaction": "auto"}}},
        }
    )
    default, clicks, views = (settings.all_topics()[name] for name in ("default", "clicks", "views"))
    assert (default.segment.compaction, default.retention.min_free_bytes) == ("off", GIB)
    assert (clicks.segment.compaction, clicks.retention.min_free_bytes) == ("off", 0)
    assert (views.segment.compaction, views.retention.min_free_bytes) == ("auto", GIB)
    plain = parse_config({}).all_topics()["default"]
    assert (plain.segment.compaction, plain.retention.min_free_bytes) == ("auto", 64 * MIB)


@pytest.mark.parametrize(
    ("document", "message"),
    [
        (
            {"segment": {"compaction": "sometimes"}},
            "key 'segment.compaction': 'sometimes' is unknown; expected one of auto, off",
        ),
        ({"segment": {"compaction": True}}, "segment.compaction"),
        ({"retention": {"min_fre": "1MiB"}}, "did you mean 'retention.min_free'"),
        ({"retention": {"min_free": "lots"}}, "retention.min_free"),
        ({"retention": 7}, "'retention': expected a table"),
        ({"data_dir": ""}, "key 'data_dir': is empty; expected a directory"),
        ({"data_dir": "~/data"}, "key 'data_dir': '~/data': nobody replaces the ~"),
        (
            {"data_dir": "s3://bucket/data"},
            "key 'data_dir': 's3://bucket/data' is a URL; expected a directory of this host",
        ),
        ({"run_dir": "~me"}, "key 'run_dir': '~me': nobody replaces the ~"),
        ({"data_dir": "a\0b"}, "key 'data_dir': .* is not what was expected"),
        ({"data_dir": "a\udcff"}, "key 'data_dir': .* is not what was expected"),
        ({"node": "../b"}, "key 'node': '../b' is not a node's name; expected 1 to 64 characters"),
        ({"node": "_hidden"}, "key 'node': '_hidden' is not a node's name"),
    ],
)
def test_wrong_values_are_named(document: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse_config(document)
