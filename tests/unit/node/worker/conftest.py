"""A host with its engine on a simulated disk, for the tests of one worker in simulated time."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.host_bench import HostBench, bench_with_log


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Iterator[HostBench]:
    bench = bench_with_log(monkeypatch)
    yield bench
    bench.close()
