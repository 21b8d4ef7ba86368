"""An archiver is killed at each call to its object store: no half object is seen, and each segment has one row and one object."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from quiver_actors.store.objects.opening import open_store
from tests.crash.archiver_kills import MOMENTS
from tests.integration.client_node import client_node, numbers
from tests.integration.test_archive import archived_ids, archived_parts

CONFIG = 'node = "anode"\n[segment]\nmax_open_duration = "1h"\n'
CALLS_MIN = 10
"""An archiver with one segment makes so many: head, checksums, segment, part, head, and the looks before and behind them."""


def test_an_archiver_that_is_killed_at_each_call_archives_each_segment_once(tmp_path: Path) -> None:
    url = f"file://{tmp_path}/archive"
    pushed, line = 0, ""
    with client_node(config=CONFIG) as node, node.connect() as client:
        command = [sys.executable, "-m", "tests.crash.archiver_kills", str(node.directories.run)]
        command += [str(node.directories.data), url]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as driver:
            assert driver.stdin is not None
            assert driver.stdout is not None
            for line in driver.stdout:
                if line == "push\n":
                    client.push(numbers(pushed))
                    client.flush()
                    pushed += 1
                    driver.stdin.write("\n")
                    driver.stdin.flush()
        assert driver.returncode == 0
    store = open_store(url)
    assert int(line) >= CALLS_MIN * len(MOMENTS)
    assert archived_ids(store) == list(range(pushed)), "every byte is proven on the way"
    rows = [(each.segment_seq, each.generation) for part in archived_parts(store) for each in part.segments]
    assert len(rows) == len(set(rows)) == pushed
    assert {generation for _, generation in rows} == {0}
    assert len(list(store.objects("anode/default"))) == 2 * len(rows)
    store.close()
