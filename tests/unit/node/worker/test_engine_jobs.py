"""Jobs of one engine on their way to the threads and back."""

from __future__ import annotations

import pytest

from quiver_actors.errors import TopicDeleted
from tests.support.host_bench import bench_with_log


def test_a_deleted_topic_is_let_go_when_its_last_job_is_back(monkeypatch: pytest.MonkeyPatch) -> None:
    gone: list[bool] = []
    bench = bench_with_log(monkeypatch)
    bench.push(1)
    bench.host.turn(bench.clock.now_ns)
    bench.host.give_up(TopicDeleted("gone"), lambda: gone.append(True))
    assert bench.jobs
    assert not gone
    while bench.jobs:
        assert not gone
        job, finished = bench.jobs.popleft()
        job.run()
        finished()
    assert gone == [True]
    bench.host.jobs.start_commit()
    assert not bench.jobs
    bench.close()


def test_one_commit_is_under_way_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = bench_with_log(monkeypatch)
    commits = len(bench.commits)
    for number in (1, 2, 3):
        bench.push(number)
        bench.host.turn(bench.clock.now_ns)
    assert len(bench.commits) == commits + 1
    bench.settle()
    assert bench.acked() == [1, 2, 3]
    bench.close()
