"""What follows when a group commit comes back, in simulated time: one host with its engine on a simulated disk and a real session."""

from __future__ import annotations

import errno

from quiver_actors.base.protocol import messages as m
from quiver_actors.errors import DiskError, DurabilityUnknown
from quiver_actors.store.jobs.commits import CommitJob
from tests.support.host_bench import HostBench


def commit_of(bench: HostBench, number: int) -> None:
    """Push a bundle whose commit begins and stays out."""
    bench.push(number)
    bench.host.turn(bench.clock.now_ns)
    (job, _) = bench.jobs[-1]
    assert isinstance(job, CommitJob)
    assert not job.rotates


def test_what_came_during_a_commit_rides_on_the_next_one(bench: HostBench) -> None:
    commit_of(bench, 1)
    bench.push(2)
    bench.push(3)
    bench.host.turn(bench.clock.now_ns)
    assert len(bench.jobs) == 1
    assert bench.acked() == []
    before = len(bench.commits)
    bench.settle()
    assert bench.acked() == [1, 2, 3]
    assert len(bench.commits) == before + 1


def test_a_segment_that_was_closed_during_a_commit_is_sealed_although_every_push_is_answered(bench: HostBench) -> None:
    commit_of(bench, 1)
    bench.host.ingest.flush(bench.session, m.Flush(7, "default"), bench.clock.now_ns)
    bench.host.touch()
    bench.host.turn(bench.clock.now_ns)
    bench.settle()
    answers = bench.received()
    assert [run.tag for answer in answers if isinstance(answer, m.Acked) for run in answer.runs] == [1]
    assert m.Done(7) in answers


def test_a_commit_that_fails_fails_the_host_at_once(bench: HostBench) -> None:
    commit_of(bench, 1)
    job, finished = bench.jobs.pop()
    assert isinstance(job, CommitJob)
    job.error = DiskError("fdatasync", "quiver.wal", errno.EIO)
    finished()
    bench.settle()
    assert bench.host.is_failed
    assert [answer.code for answer in bench.received() if isinstance(answer, m.Refused)] == [DurabilityUnknown.code]
