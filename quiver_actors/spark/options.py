"""The options of `format("quiver")`: one table, case-insensitive as everywhere in Spark, unknown and contradictory ones refused.

`docs/spark.md` shows the same table; a test compares the two.
"""

from __future__ import annotations

import datetime
import difflib
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from quiver_actors.base.envelope import parse_trace
from quiver_actors.base.model import DEFAULT_TOPIC, check_id
from quiver_actors.base.units import MIB, SECOND_NS, parse_duration_ns, parse_size
from quiver_actors.errors import ConfigError, UsageError
from quiver_actors.spark.offsets import Offsets, parse_offsets
from quiver_actors.spark.where import EVERYTHING, Where, parse_where

READ, WRITE, READ_STREAM, WRITE_STREAM = "read", "write", "readStream", "writeStream"
READS = (READ, READ_STREAM)
WRITES = (WRITE, WRITE_STREAM)
ANY = READS + WRITES

EARLIEST, LATEST = "earliest", "latest"
COMMIT_PROTOCOLS = ("batch", "task", "none")
SPARK_OWN = re.compile(r"checkpointlocation|queryname|owner|provider|option\..*")
"""Options that Spark adds by itself, to streams and to tables of its catalog."""


@dataclass(frozen=True)
class SourceOptions:
    """The options of one read or write, checked. Travels pickled from the driver to its tasks."""

    topic: str = DEFAULT_TOPIC
    run_dir: str | None = None
    """None: each process asks its own environment (`QUIVER_RUN_DIR`, else the default of its node)."""
    archive: str | None = None
    """Read from the object store of this URL, and ask no node."""
    nodes: str | None = None
    """None: `QUIVER_NODES`, else only the node of the driver."""
    token: str | None = None
    tls_roots: str | None = None
    trusted_uid: int | None = None
    slots: tuple[str | int, ...] = ()
    key: str | None = None
    push_timeout_ns: int = 60 * SECOND_NS
    bundle_bytes: int = 4 * MIB
    traceparent: str | None = None
    """The W3C trace that all bundles of a write belong to."""
    commit_protocol: str = "batch"
    stage_ttl_ns: int = 3600 * SECOND_NS
    txn_app_id: str | None = None
    txn_version: int | None = None
    checkpoint: str | None = None
    """Where Spark keeps the progress of a streaming query; for a batch write, where its decision goes."""
    decisions: str | None = None
    """Where decisions go; None: beside the checkpoint, else as `commit.decisions_location` says."""
    max_partition_bytes: int = 64 * MIB
    min_partitions: int = 1
    starting_offsets: str | Offsets | None = None
    ending_offsets: str | Offsets = LATEST
    starting_unix_ns: int | None = None
    max_rows_per_trigger: int | None = None
    max_bytes_per_trigger: int | None = None
    fail_on_data_loss: bool = True
    verify_checksums: bool = True
    subscriber: str | None = None
    subscriber_ttl_ns: int = 7 * 86400 * SECOND_NS
    where: Where = EVERYTHING
    include_metadata: bool = False


def _topic(text: str) -> str:
    return check_id("topic", text)


def _subscriber(text: str) -> str:
    return check_id("subscriber", text)


def _slots(text: str) -> tuple[str | int, ...]:
    names = [name.strip() for name in text.split(",")]
    if not all(names) or len(set(names)) != len(names):
        raise ConfigError(f"{text!r} is not a list of distinct slot names or ids, such as 'flights,weather'")
    return tuple(int(name) if name.isdecimal() else name for name in names)


def _size(text: str) -> int:
    size_bytes = parse_size(text)
    if size_bytes == 0:
        raise ConfigError("0 bytes is too small")
    return size_bytes


def _user(text: str) -> int:
    if not text.strip().isdecimal():
        raise ConfigError(f"{text!r} is not the number of a user, as `id -u NAME` prints it")
    return int(text)


def _count(text: str) -> int:
    if not text.strip().isdecimal() or int(text) < 1:
        raise ConfigError(f"{text!r} is not a number of at least 1")
    return int(text)


def _version(text: str) -> int:
    if not text.strip().isdecimal():
        raise ConfigError(f"{text!r} is not a number of at least 0")
    return int(text)


def _traceparent(text: str) -> str:
    return parse_trace(text)["traceparent"]


def _flag(text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise ConfigError(f"{text!r} is neither 'true' nor 'false'")
    return text.lower() == "true"


def _protocol(text: str) -> str:
    if text.lower() not in COMMIT_PROTOCOLS:
        raise ConfigError(f"{text!r} is unknown: expected one of {', '.join(COMMIT_PROTOCOLS)}")
    return text.lower()


def _offsets(text: str) -> str | Offsets:
    return text.lower() if text.lower() in (EARLIEST, LATEST) else parse_offsets(text)


def _timestamp_ns(text: str) -> int:
    if text.strip().isdecimal():
        return int(text) * 1_000_000
    try:
        instant = datetime.datetime.fromisoformat(text.strip())
    except ValueError:
        instant = None
    if instant is None or instant.tzinfo is None:
        raise ConfigError(
            f"{text!r} is neither milliseconds since 1970 nor a time with a zone such as '2024-05-01T00:00:00+00:00'"
        )
    epoch = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
    return (instant - epoch) // datetime.timedelta(microseconds=1) * 1000


@dataclass(frozen=True)
class Option:
    """One row of the table: its spelling in the documentation, the field that it sets, how to read it, and who takes it."""

    name: str
    field: str
    parse: Callable[[str], Any]
    used_by: tuple[str, ...]


OPTIONS: tuple[Option, ...] = (
    Option("topic", "topic", _topic, ANY),
    Option("path", "topic", _topic, ANY),
    Option("runDir", "run_dir", str, ANY),
    Option("trustedUid", "trusted_uid", _user, ANY),
    Option("nodes", "nodes", str, ANY),
    Option("archive", "archive", str, (READ,)),
    Option("token", "token", str, ANY),
    Option("tlsRoots", "tls_roots", str, ANY),
    Option("pushTimeout", "push_timeout_ns", parse_duration_ns, ANY),
    Option("slots", "slots", _slots, ANY),
    Option("key", "key", str, WRITES),
    Option("bundleBytes", "bundle_bytes", _size, WRITES),
    Option("traceparent", "traceparent", _traceparent, WRITES),
    Option("commitProtocol", "commit_protocol", _protocol, WRITES),
    Option("stageTtl", "stage_ttl_ns", parse_duration_ns, WRITES),
    Option("txnAppId", "txn_app_id", str, (WRITE,)),
    Option("txnVersion", "txn_version", _version, (WRITE,)),
    Option("checkpointLocation", "checkpoint", str, WRITES),
    Option("decisions", "decisions", str, WRITES),
    Option("maxPartitionBytes", "max_partition_bytes", _size, READS),
    Option("minPartitions", "min_partitions", _count, READS),
    Option("startingOffsets", "starting_offsets", _offsets, READS),
    Option("startingTimestamp", "starting_unix_ns", _timestamp_ns, READS),
    Option("endingOffsets", "ending_offsets", _offsets, (READ,)),
    Option("failOnDataLoss", "fail_on_data_loss", _flag, READS),
    Option("verifyChecksums", "verify_checksums", _flag, READS),
    Option("where", "where", parse_where, READS),
    Option("includeMetadata", "include_metadata", _flag, READS),
    Option("maxRowsPerTrigger", "max_rows_per_trigger", _count, (READ_STREAM,)),
    Option("maxBytesPerTrigger", "max_bytes_per_trigger", _size, (READ_STREAM,)),
    Option("subscriber", "subscriber", _subscriber, (READ_STREAM,)),
    Option("subscriberTtl", "subscriber_ttl_ns", parse_duration_ns, (READ_STREAM,)),
)


def check_topic_given(given: Mapping[str, str]) -> None:
    """
    Raises:
        ConfigError: none is. It has no default here: Spark takes the options of a table of its catalog away on every INSERT and SELECT, and
            rows are not to go anywhere by chance.
    """
    if not {"topic", "path"} & {key.lower() for key in given}:
        raise ConfigError(
            "option 'topic' is missing. In SQL, OPTIONS of a table never reach a Python source: use a view (CREATE TEMPORARY VIEW name "
            "(columns) USING quiver OPTIONS (topic '...')), or name the topic each time: INSERT INTO name WITH ('topic' = '...') ..."
        )


def parse_options(given: Mapping[str, str], operation: str) -> SourceOptions:
    """Turn the options of an operation (`READ`, `WRITE`, `READ_STREAM`, `WRITE_STREAM`) into values.

    Raises:
        ConfigError: unknown for this operation (lists the known ones), not understood, or options that contradict each other.
    """
    options = parse_options_of(given, (operation,))
    _check_together(options, operation)
    return options


def parse_options_of(given: Mapping[str, str], operations: tuple[str, ...]) -> SourceOptions:
    """The same where it is not known which of several operations it is: each option only has to suit one of them."""
    table = {option.name.lower(): option for option in OPTIONS if set(operations) & set(option.used_by)}
    values: dict[str, Any] = {}
    for key, text in given.items():
        option = table.get(key.lower())
        if option is None and SPARK_OWN.fullmatch(key.lower()):
            continue
        if option is None:
            raise ConfigError(_unknown(key, operations[0], [option.name for option in table.values()]))
        try:
            value = option.parse(text)
        except UsageError as error:
            raise ConfigError(f"option {option.name!r}: {error}") from error
        if values.setdefault(option.field, value) != value:
            raise ConfigError(
                f"options 'topic' and 'path' name different topics: {values[option.field]!r} and {value!r}"
            )
    return SourceOptions(**values)


def _check_together(options: SourceOptions, operation: str) -> None:
    if (options.txn_app_id is None) != (options.txn_version is None):
        raise ConfigError("options 'txnAppId' and 'txnVersion' belong together: give both or neither")
    if options.txn_app_id is not None and options.commit_protocol != "batch":
        raise ConfigError("option 'txnAppId' needs commitProtocol=batch: the others do not remember what was written")
    if options.archive is not None and (options.nodes or options.run_dir):
        raise ConfigError("option 'archive' reads from an object store alone: leave out 'nodes' and 'runDir'")
    if options.starting_offsets is not None and options.starting_unix_ns is not None:
        raise ConfigError("options 'startingOffsets' and 'startingTimestamp' contradict each other: give one")
    if options.ending_offsets == EARLIEST:
        raise ConfigError("option 'endingOffsets': nothing ends at 'earliest'; expected 'latest' or offsets as JSON")
    if operation == READ and options.starting_offsets == LATEST:
        raise ConfigError(
            "option 'startingOffsets': a batch read from 'latest' has no rows; expected 'earliest' or JSON"
        )
    if options.key is not None and len(options.slots) > 1:
        raise ConfigError("option 'key' names a column: it does not go together with several slots")


def _unknown(key: str, operation: str, known: list[str]) -> str:
    spelled = {name.lower(): name for name in known}
    near = difflib.get_close_matches(key.lower(), list(spelled), n=1)
    hint = f"did you mean {spelled[near[0]]!r}? " if near else ""
    return f"option {key!r} is unknown to a {operation} of format quiver; {hint}Known options: {', '.join(known)}"
