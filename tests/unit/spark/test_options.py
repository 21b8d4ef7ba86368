"""Options of `format("quiver")`: read case-insensitively, refused by name."""

from __future__ import annotations

from pathlib import Path

import pytest

from quiver_actors.base.units import MIB, SECOND_NS
from quiver_actors.errors import ConfigError
from quiver_actors.spark.commit import decisions_location, named_transaction
from quiver_actors.spark.options import (
    ANY,
    OPTIONS,
    READ,
    READ_STREAM,
    WRITE,
    WRITE_STREAM,
    SourceOptions,
    check_topic_given,
    parse_options,
)


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
    assert options == SourceOptions("travel", "/run/q", slots=("flights", 7), max_partition_bytes=16 * MIB)


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


def test_a_traceparent_is_one() -> None:
    parent = f"00-{'1' * 32}-{'2' * 16}-01"
    assert parse_options({"traceparent": parent}, WRITE).traceparent == parent
    with pytest.raises(ConfigError, match="option 'traceparent'"):
        parse_options({"traceparent": "00-1"}, WRITE)


@pytest.mark.parametrize(
    ("options", "operation", "message"),
    [
        ({"txnAppId": "a"}, WRITE, "'txnAppId' and 'txnVersion'"),
        ({"txnVersion": "3"}, WRITE, "'txnAppId' and 'txnVersion'"),
        ({"txnAppId": "a", "txnVersion": "3", "commitProtocol": "none"}, WRITE, "needs commitProtocol=batch"),
        ({"startingOffsets": "earliest", "startingTimestamp": "0"}, READ_STREAM, "contradict"),
        ({"startingOffsets": "latest"}, READ, "has no rows"),
        ({"endingOffsets": "earliest"}, READ, "nothing ends"),
        ({"key": "id", "slots": "a,b"}, WRITE, "several slots"),
    ],
)
def test_options_that_contradict_each_other_are_refused(options: dict[str, str], operation: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse_options(options, operation)


def test_writes_to_different_topics_are_different_transactions() -> None:
    """Topics and names may have dashes: the second of two writes that shared a transaction stored nothing."""
    names = [
        ("clicks", "eu-job", "7"),
        ("clicks-eu", "job", "7"),
        ("clicks", "eu-job-7", "7"),
        ("clicks", "eu/job", "7"),
    ]
    transactions = {
        named_transaction(parse_options({"topic": topic, "txnAppId": app, "txnVersion": version}, WRITE))
        for topic, app, version in names
    }
    assert len(transactions) == len(names)


@pytest.mark.parametrize(
    ("checkpoint", "decisions"),
    [
        ("/ck/", "/ck/_quiver_decisions"),
        ("/a#b?c", "/a#b?c/_quiver_decisions"),
        ("file:/ck", "/ck/_quiver_decisions"),
        ("file:///ck/", "/ck/_quiver_decisions"),
        ("hdfs:/ck", "hdfs:///ck/_quiver_decisions"),
        ("hdfs:///ck/a/", "hdfs:///ck/a/_quiver_decisions"),
        ("hdfs://name:8020/ck", "hdfs://name:8020/ck/_quiver_decisions"),
        ("s3a://bucket", "s3a://bucket/_quiver_decisions"),
        ("s3://bucket/ck?region=eu", "s3://bucket/ck/_quiver_decisions?region=eu"),
    ],
)
def test_decisions_are_below_the_checkpoint_however_it_is_spelled(checkpoint: str, decisions: str) -> None:
    """`hdfs:///ck` gave no URI, so that every task failed, and `hdfs:/ck` a directory of its own on every host."""
    options = parse_options({"topic": "t", "checkpointLocation": checkpoint}, WRITE_STREAM)
    assert decisions_location(options) == decisions


@pytest.mark.parametrize(("given", "decisions"), [("s3://bucket/log", "s3://bucket/log"), ("file:/log/", "/log")])
def test_decisions_go_where_the_options_say(given: str, decisions: str) -> None:
    options = parse_options({"topic": "t", "checkpointLocation": "/ck", "decisions": given}, WRITE_STREAM)
    assert decisions_location(options) == decisions


def test_what_spark_adds_by_itself_is_no_error() -> None:
    assert parse_options({"checkpointlocation": "/x", "queryname": "q"}, WRITE_STREAM).checkpoint == "/x"
    assert parse_options({"queryName": "q"}, READ_STREAM) == SourceOptions()


@pytest.mark.parametrize(
    ("text", "unix_ns"),
    [("1500", 1_500_000_000), ("1970-01-01T00:00:01+00:00", 10**9), ("1970-01-01T01:00:00.5+01:00", 5 * 10**8)],
)
def test_a_time_is_milliseconds_or_has_a_zone(text: str, unix_ns: int) -> None:
    assert parse_options({"startingTimestamp": text}, READ).starting_unix_ns == unix_ns
    with pytest.raises(ConfigError, match="with a zone"):
        parse_options({"startingTimestamp": "2024-05-01T00:00:00"}, READ)


def test_the_source_wants_a_topic() -> None:
    check_topic_given({"Topic": "a"})
    check_topic_given({"path": "a"})
    with pytest.raises(ConfigError, match="CREATE TEMPORARY VIEW"):
        check_topic_given({"runDir": "/run/q"})


def test_the_documented_table_is_the_table() -> None:
    text = (Path(__file__).parents[3] / "docs" / "spark.md").read_text()
    section = text.split("## Options", 1)[1].split("\n## ", 1)[0]
    rows = [line.split(" | ") for line in section.splitlines() if line.startswith("| `")]
    documented = {row[0].strip("|` "): row[1] for row in rows}
    users = {option.name: "all" if set(option.used_by) == set(ANY) else ", ".join(option.used_by) for option in OPTIONS}
    assert documented == users
