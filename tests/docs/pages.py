"""The documentation's code blocks, and how they are run.

A block is run as its first word says, in the order of the page, in one directory and one process a page, so that a later block uses what
an earlier one made:

    python        executed; all blocks of a page share their names
    sh            executed by bash, line by line output is not compared; a line `quiver up ... &` leaves a node running until the page ends
    toml          read as a configuration, with every check
    sh example    examples of the commands' own help: tests/integration/test_cli_examples.py and tests/unit/cli run each of them
    json, text    not executed

Directories of a system, such as /var/lib/quiver, stand for directories of the page's own, and ports for free ones.

What cannot run here stands in `ELSEWHERE`, with the reason: of `elsewhere` the `quiver` commands are parsed, the `make` targets and modules
have to be there, Python is compiled; `python continued` is a fragment, and compiled.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
_FENCE = re.compile(r"^(?P<indent> *)```(?P<info>[^\n`]*)\n(?P<code>.*?)^(?P=indent)```[ ]*$", re.MULTILINE | re.DOTALL)


ELSEWHERE: dict[tuple[str, str], str] = {
    (
        "archive",
        "since = datetime.datetime(2026, 1, 1",
    ): "needs bundles that have left the disk; tests/integration/test_archive_subscribe.py makes some",
    (
        "delivery",
        "for delivery in deliveries:\n    try:",
    ): "needs a damaged file under a running node; tests/integration/test_live_damage.py makes one",
    (
        "README",
        "make demo    # real flights",
    ): "runs for minutes, and make test is what runs this; make test-demo runs the demo",
    (
        "README",
        "from quiver_actors import spark as qs",
    ): "a sketch without data; the page about Spark runs the same with data",
    (
        "README",
        "make check     # lint",
    ): "runs these tests, or for hours; quick forms of every benchmark and torture are tested",
    (
        "archive",
        "pip install 'quiver-actors[archive]'",
    ): "a bucket; tests/integration/test_archive.py runs these commands",
    ("archive", "receipts = client.push_many("): "a bucket; tests/integration/test_archive.py waits so",
    ("archive", "try:\n    receipt = client.push("): "a bucket; tests/integration/test_archived_pushes.py pushes so",
    ("archive", "quiver restore --archive"): "a bucket; tests/integration/test_restore.py restores a node",
    ("archive", "quiver archive take-over"): "a bucket; tests/integration/test_archive.py takes an archive over",
    ("archive", "quiver archive repair"): "a bucket; tests/unit/archive/test_head_repair.py repairs a head",
    ("archive", "everything = client.read("): "a bucket; tests/integration/test_archive_one_read.py reads so",
    (
        "archive",
        'with quiver_actors.open_archive("s3://bucket/quiver", node="worker-7") as archive:\n    print(',
    ): "a bucket; tests/integration/test_archive_reading.py reads one",
    (
        "archive",
        'with quiver_actors.open_archive("s3://bucket/quiver", node="worker-7") as archive:\n    late = ',
    ): "a bucket; tests/integration/test_archive_queries.py asks one",
    ("developing", "make check     # lint"): "runs these tests",
    ("getting-started", "python3 -m venv .venv"): "installs the package from an index; make fresh-user runs it",
    ("getting-started", "pip install 'quiver-actors[spark"): "the same",
    (
        "getting-started",
        "from pyspark.sql import",
    ): "the same: needs what that installs; the page about Spark runs as much here",
    ("getting-started", "for delivery in deliveries"): "a loop without an end",
    ("performance", "make bench "): "runs for an hour; the quick form of every module is tested",
    (
        "query",
        "import pyarrow.flight as fl",
    ): "a server on another host; tests/integration/test_flight_tables.py reads so",
    (
        "remote",
        "import pyarrow as pa",
    ): "a server on another host; tests/integration/remote/test_remote.py and an example run the same",
    (
        "remote",
        "import quiver_actors.aio",
    ): "the same; tests/integration/remote/test_remote_asyncio.py makes these calls",
    ("remote", "import duckdb"): "the same; tests/integration/remote/test_remote_reading.py asks so",
    ("remote", "import pyarrow.flight as fl"): "the same; tests/integration/remote/test_remote.py pushes so",
    ("remote", "quiver serve --config"): "a port for other machines, and files of TLS",
    ("security", "quiver subscribers share invoices"): "another user's command; tests/security runs it",
    ("spark", "python3 -m venv env"): "installs the package from an index, and submits to a cluster",
    ("spark", "quiver serve --listen 0.0.0.0:8815"): "a port for other machines, and a bucket",
    ("spark", "quiver drain --timeout 10m --leave"): "a bucket",
    ("spark", "with qs.testing.StandaloneCluster("): "three JVMs and 3 GB; make test-cluster runs on it",
}
"""(page, beginning of the block): why nobody runs it here."""


class Block(NamedTuple):
    """One fenced block."""

    line: int
    language: str
    mode: str
    code: str


def pages() -> list[Path]:
    """Every page of the documentation."""
    return [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def blocks_of(page: Path) -> Iterator[Block]:
    """The fenced blocks of a page, from top to bottom."""
    text = page.read_text(encoding="utf-8")
    for found in _FENCE.finditer(text):
        language, _, mode = found["info"].strip().partition(" ")
        indent = len(found["indent"])
        code = "".join(line[indent:] if line.strip() else "\n" for line in found["code"].splitlines(keepends=True))
        yield Block(text.count("\n", 0, found.start()) + 1, language, mode, code)
