"""`quiver subscribers export`: a subscriber's progress as files that the Rust implementation reads."""

from __future__ import annotations

import argparse
import os
from typing import TYPE_CHECKING

from quiver_actors.cli.documents.json_document import print_json
from quiver_actors.cli.storage import opened
from quiver_actors.errors import UnknownSubscriber, UsageError

if TYPE_CHECKING:
    Subparsers = argparse._SubParsersAction[argparse.ArgumentParser]

_DESCRIPTION = """\
Write the progress of a subscriber as files that the Rust implementation of Quiver reads: it accepts CRC-32 only, and takes no notice of
watermarks. Stop the node first: progress of the last moments is in memory. If the node was killed, the bundles in its logs are sealed into
segments first, as its next start would do it. The files go below --out, one for each core, under the names
that they have in the data directory; copy them there when only that implementation is to go on.
"""
_EPILOG = """\
examples:
  quiver subscribers export exporter --data-dir /var/lib/quiver --topic clicks --format rust --out /tmp/exported
"""


def add_parser(commands: Subparsers) -> None:
    """Add `export`."""
    parser = commands.add_parser(
        "export",
        help="write a subscriber's progress for the Rust implementation",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("subscriber")
    parser.add_argument("--data-dir", metavar="DIR", required=True, help="the data directory of a node that is stopped")
    parser.add_argument("--topic", metavar="TOPIC", default="default", help="the subscriber's topic (default)")
    parser.add_argument("--format", choices=("rust",), default="rust", help="who is to read the files (rust)")
    parser.add_argument("--out", metavar="DIR", default=".", help="where they go; created if it is missing (.)")
    parser.add_argument("--json", action="store_true", help="one JSON object that lists the files")
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    """Raises UnknownSubscriber, UsageError where a file would be overwritten, FormatError for damaged progress, AlreadyRunning, DataLost,
    DiskError."""
    from quiver_actors.store.inspection import directory as directories
    from quiver_actors.store.inspection.rust_progress import progress_for_rust, seal_logs

    found: dict[str, bytes] = {}
    with opened(arguments.data_dir) as (tree, place):
        for engine in directories.engine_directories(tree.disk, directories.join(place, arguments.topic)):
            seal_logs(tree, engine)
            content = progress_for_rust(tree, engine, arguments.subscriber)
            if content is not None:
                path = os.path.join(arguments.out, engine.removeprefix("./"), f"quiver.sub.{arguments.subscriber}")
                found[path] = content
    if not found:
        raise UnknownSubscriber(
            f"no core of topic {arguments.topic!r} in {arguments.data_dir} knows subscriber {arguments.subscriber!r}: "
            "look at the names quiver.sub.<id> there"
        )
    for path, content in found.items():
        _write_new(path, content)
    if arguments.json:
        print_json({"subscriber": arguments.subscriber, "topic": arguments.topic, "files": sorted(found)})
    else:
        for path in sorted(found):
            print(path)
    return 0


def _write_new(path: str, content: bytes) -> None:
    os.makedirs(os.path.dirname(path), exist_ok=True)
    try:
        with open(path, "xb") as file:
            file.write(content)
    except FileExistsError as error:
        raise UsageError(f"{path} exists: name another directory with --out") from error
