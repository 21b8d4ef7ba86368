"""What a worker looks at to see how hard pressed it is."""

from __future__ import annotations

import pytest

from quiver_actors.node.worker import load


def test_the_memory_that_is_taken_is_what_the_kernel_says(monkeypatch: pytest.MonkeyPatch) -> None:
    files = {"/proc/meminfo": b"MemTotal: 1000 kB\nMemFree: 10 kB\nMemAvailable: 250 kB\nBuffers: 1 kB\n"}
    monkeypatch.setattr(load, "_read", lambda path: files.get(path, b""))
    assert load.memory_taken() == 0.75
    group = "/sys/fs/cgroup/memory"
    files |= {f"{group}.max": b"1000\n", f"{group}.current": b"950\n", f"{group}.stat": b"anon 5\ninactive_file 50\n"}
    assert load.memory_taken() == 0.9
    files[f"{group}.max"] = b"max\n"
    assert load.memory_taken() == 0.75
    files.clear()
    assert load.memory_taken() == 0


def test_this_machine_says_something() -> None:
    taken = load.memory_taken()
    assert 0 < taken < 1
