"""Options of `format("quiver")`: read case-insensitively, refused by name."""

from __future__ import annotations

import pytest

from quiver_actors.errors import ConfigError
from quiver_actors.spark.options import OPTIONS, READ, WRITE, SourceOptions, parse_options
from quiver_actors.units import MIB, SECOND_NS


def test_without_options_everything_has_its_default() -> None:
    assert parse_options({}, READ) == SourceOptions(
        topic="default", run_dir=None, slots=(), push_timeout_ns=60 * SECOND_NS
    )


@pytest.mark.parametrize("spelling", ["pushTimeout", "pushtimeout", "PUSHTIMEOUT"])
def test_any_case_is_the_same_option(spelling: str) -> None:
    assert parse_options({spelling: "5s"}, WRITE).push_timeout_ns == 5 * SECOND_NS


def test_values_are_read() -> None:
    options = parse_options(
        {"path": "travel", "runDir": "/run/q", "slots": "flights, 7", "maxPartitionBytes": "16MiB"}, READ
    )
    assert options == SourceOptions("travel", "/run/q", ("flights", 7), max_partition_bytes=16 * MIB)


def test_topic_and_path_may_agree_but_not_differ() -> None:
    assert parse_options({"topic": "a", "path": "a"}, READ).topic == "a"
    with pytest.raises(ConfigError, match="'topic' and 'path'"):
        parse_options({"topic": "a", "path": "b"}, READ)


def test_an_unknown_option_is_refused_with_the_likely_one_and_the_list() -> None:
    with pytest.raises(ConfigError, match="did you mean 'pushTimeout'") as refused:
        parse_options({"pushTimeuot": "5s"}, WRITE)
    for option in OPTIONS:
        assert (option.name in str(refused.value)) == (WRITE in option.used_by)


def test_an_option_of_the_other_direction_is_unknown() -> None:
    with pytest.raises(ConfigError, match="unknown to a write"):
        parse_options({"maxPartitionBytes": "1MiB"}, WRITE)


@pytest.mark.parametrize(
    ("name", "text"),
    [("topic", "no/slash"), ("slots", "a,,b"), ("slots", "a,a"), ("pushTimeout", "soon"), ("maxPartitionBytes", "0")],
)
def test_a_value_that_is_not_understood_names_its_option(name: str, text: str) -> None:
    with pytest.raises(ConfigError, match=f"option '{name}'"):
        parse_options({name: text}, READ)
