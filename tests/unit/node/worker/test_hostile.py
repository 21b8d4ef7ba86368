"""What a hostile producer or consumer says costs itself something and nobody else anything: one host, as the worker's loop drives it."""

from __future__ import annotations

import errno
import os

import msgspec
import pytest

from quiver_actors.base.protocol import messages as m
from quiver_actors.base.units import SECOND_NS
from quiver_actors.client.targets import ToStage
from quiver_actors.errors import Draining, UsageError
from tests.support.engine_driver import numbered_batch
from tests.support.host_bench import HostBench

REASON = Draining("no more")


def with_impossible_end(bench: HostBench, tag: int) -> m.Push:
    return msgspec.structs.replace(bench._placed([{0: numbered_batch(tag)}], tag), end_position=1 << 60)


def no_descriptor(*_: object) -> int:
    raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))


def attach(bench: HostBench, terms: m.Terms) -> None:
    bench.host.deliveries.register(bench.session, m.Register(9, "default", "s", "earliest", terms))
    bench.host.deliveries.credit(bench.session, m.Credit("default", "s", 100))
    seal(bench)


def seal(bench: HostBench) -> None:
    bench.host.ingest.flush(bench.session, m.Flush(7, "default"), bench.clock.now_ns)
    bench.host.touch()
    bench.settle()


def delivered(bench: HostBench) -> int:
    return sum(len(answer.bundle_indexes) // 4 for answer in bench.received() if isinstance(answer, m.Deliver))


def test_an_impossible_position_of_a_push_that_waits_and_is_refused_ends_nothing(bench: HostBench) -> None:
    """Regression: each refusal of such a push ended the worker."""
    bench.host.ingest.close(REASON)
    bench._push(with_impossible_end(bench, 1))
    bench.push(2)
    bench.settle()
    assert [answer.tag for answer in bench.received() if isinstance(answer, m.Refused)] == [1, 2]


def test_nor_does_one_of_a_stage(bench: HostBench) -> None:
    bench.host.staging.begin(bench.session, m.BeginStage(3, "default", "t", 0, 0, 0, "", SECOND_NS))
    (begun,) = [answer for answer in bench.received() if isinstance(answer, m.Done)]
    push = ToStage(begun.value).of(with_impossible_end(bench, 4))
    assert isinstance(push, m.StagePush)
    bench.host.staging.push(bench.session, push, bench.clock.now_ns)
    bench.host.staging.refuse_all(REASON)
    assert [answer.tag for answer in bench.received() if isinstance(answer, m.Refused)] == [4]


def test_a_lease_that_ends_behind_all_numbers_is_refused(bench: HostBench) -> None:
    """Regression: such a lease ended the worker with the first delivery."""
    with pytest.raises(UsageError, match="terms with a number"):
        attach(bench, m.Terms(lease_ns=(1 << 64) - 1))
    attach(bench, m.Terms(lease_ns=(1 << 63) - 1))
    assert delivered(bench) == 1


def test_dead_letters_do_not_go_to_the_topic_that_they_are_of(bench: HostBench) -> None:
    """Its subscriber got them again and again, each time in one more envelope."""
    with pytest.raises(UsageError, match="is the topic itself"):
        attach(bench, m.Terms(max_deliveries=1, dead_letter_topic="default"))


def test_a_worker_without_a_descriptor_delivers_when_it_has_one(
    bench: HostBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Regression: with a descriptor left for the file and none for its copy, or none to announce a compacted file, the worker ended."""
    attach(bench, m.Terms())
    assert delivered(bench) == 1
    (info,) = bench.host.engine.segments()

    with monkeypatch.context() as poor:
        poor.setattr("quiver_actors.store.engine.sealed_segments.os.dup", no_descriptor)
        poor.setattr("quiver_actors.store.disk.posix.os.open", no_descriptor)
        bench.host.dispatcher.replaced(info.segment_seq)
        bench.push(1)
        seal(bench)
        assert delivered(bench) == 0
    bench.run_for(2 * SECOND_NS)
    assert delivered(bench) == 1


def test_what_could_not_be_sent_was_not_delivered_too_often(bench: HostBench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Regression: a failed send counted as a delivery, so a bundle at its limit was dropped although no consumer had seen it."""
    with monkeypatch.context() as poor:
        poor.setattr("quiver_actors.store.engine.sealed_segments.os.dup", no_descriptor)
        poor.setattr("quiver_actors.store.disk.posix.os.open", no_descriptor)
        attach(bench, m.Terms(max_deliveries=1, exhausted="drop"))
        assert delivered(bench) == 0
    bench.run_for(2 * SECOND_NS)
    (deliver,) = [answer for answer in bench.received() if isinstance(answer, m.Deliver)]
    assert deliver.delivery_counts == b"\x01\x00"
    assert bench.host.engine.owed.figures_of("s").rejected == 0


@pytest.mark.parametrize("index", [70_000, 10**18])
def test_a_start_at_a_bundle_that_no_segment_can_have_is_refused(bench: HostBench, index: int) -> None:
    """The worker ended with the next flush of progress, or for want of memory."""
    seal(bench)
    with pytest.raises(UsageError, match="at most 65535 bundles"):
        bench.host.deliveries.register(bench.session, m.Register(9, "default", "s", f"bundle:0/0/{index}"))
    bench.host.deliveries.register(bench.session, m.Register(9, "default", "s", "bundle:0/0/65535"))
    bench.host.touch()
    bench.run_for(SECOND_NS)
    assert [answer.tag for answer in bench.received() if isinstance(answer, m.Done)] == [7, 9]


@pytest.mark.parametrize("wrong", [(0, -5, 0, 1), (0, 0, 0, -5)])
@pytest.mark.parametrize("is_sealed", [True, False])
def test_a_question_about_bundles_that_cannot_be_is_refused(
    bench: HostBench, wrong: tuple[int, int, int, int], is_sealed: bool
) -> None:
    """Regression: such a question ended the worker."""
    bench.host.deliveries.register(bench.session, m.Register(9, "default", "s", "earliest"))
    if is_sealed:
        seal(bench)
    with pytest.raises(UsageError, match="expected 0 or more"):
        bench.host.deliveries.questions.pending(bench.session, m.Pending(8, "default", "s", *wrong))
    bench.host.deliveries.questions.pending(bench.session, m.Pending(8, "default", "s", 0, 0, 0, 1 << 62))
    assert [answer.in_range for answer in bench.received() if isinstance(answer, m.PendingInfo)] == [1]
