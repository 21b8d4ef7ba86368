"""The demo as `make demo` runs it: workers and an executor are killed, nothing is lost, every row is as in the source."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from tests.integration.node_process import ROOT

CLOSING_LINE = re.compile(r"^pushed=(\d+) delivered=(\d+) lost=(\d+) duplicates=(\d+) rows_equal=(true|false)$")


@pytest.mark.spark
@pytest.mark.demo
@pytest.mark.crash
@pytest.mark.timeout(900)
def test_the_demo_loses_nothing() -> None:
    command = [sys.executable, "-m", "quiver_actors.demo"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=880, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    closing = CLOSING_LINE.match(done.stdout.splitlines()[-1])
    assert closing is not None, done.stdout
    pushed, delivered, lost, duplicates = map(int, closing.groups()[:4])
    assert pushed == 2919
    assert delivered >= pushed
    assert lost == 0
    assert duplicates >= delivered - pushed
    assert closing.group(5) == "true"
    assert "SIGKILL to worker 0" in done.stdout
    assert 'format("quiver"): 3322 rows, equal=true' in done.stdout
    assert "SIGKILL to an executor" in done.stdout
    assert "SIGKILL to worker 1" in done.stdout
    assert re.search(r"^stream: rows=336776 lost=0 duplicates=0 rows_equal=true$", done.stdout, re.MULTILINE), (
        done.stdout
    )
