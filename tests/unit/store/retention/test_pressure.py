"""The pressure figure and its ladder, sample by sample."""

import pytest

from quiver_actors.store.retention.pressure import (
    COALESCE_NS_MAX,
    LADDER,
    RETRY_AFTER_NS_MAX,
    SYNC_NS_LIMIT,
    WINDOW_NS_MAX,
    WINDOW_NS_MIN,
    Pressure,
    Signals,
    Step,
    pressure_of,
)


def settle(pressure: Pressure, cap: float) -> None:
    for _ in range(100):
        pressure.sample(Signals(cap=cap))


def test_the_highest_signal_is_the_pressure() -> None:
    assert pressure_of(Signals()) == 0
    assert pressure_of(Signals(backlog=0.1, memory=0.5, sync_ns=1_000_000)) == 0
    assert pressure_of(Signals(backlog=1.0)) == 1
    assert pressure_of(Signals(cap=1.5)) == 1
    assert pressure_of(Signals(memory=0.99, cap=0.3)) == 1
    assert pressure_of(Signals(sync_ns=10 * SYNC_NS_LIMIT)) == 1
    assert 0 < pressure_of(Signals(sync_ns=SYNC_NS_LIMIT // 2)) < 1


def test_from_zero_to_one_and_back_each_step_begins_and_ends_once_at_its_own_figure() -> None:
    pressure, begun, ended = Pressure(), {}, {}
    figures = [*range(0, 101), *range(100, -1, -1)]
    for number, percent in enumerate(figures):
        before = pressure.steps
        settle(pressure, percent / 100)
        for step, _, _ in LADDER:
            if step in pressure.steps and step not in before:
                assert step not in begun
                begun[step] = percent
            if step in before and step not in pressure.steps:
                assert number > 100
                assert step not in ended
                ended[step] = percent
    assert begun == {Step.COALESCE: 20, Step.WIDEN: 40, Step.DEFER: 80, Step.REFUSE: 100}
    assert all(abs(ended[step] - (100 * ends - 1)) <= 1 for step, _, ends in LADDER), ended
    assert pressure.steps == Step(0)
    assert pressure.value == 0


def test_a_figure_that_swings_around_a_threshold_does_not_flap() -> None:
    pressure = Pressure()
    settle(pressure, 0.81)
    changes = 0
    for number in range(200):
        before = pressure.steps
        pressure.sample(Signals(cap=0.78 if number % 2 else 0.82))
        changes += before != pressure.steps
    assert changes == 0
    assert pressure.defers


def test_it_rises_at_once_and_falls_by_and_by() -> None:
    pressure = Pressure()
    pressure.sample(Signals(cap=1.0))
    assert pressure.refuses
    pressure.sample(Signals())
    assert pressure.value == pytest.approx(0.8)
    assert not pressure.refuses
    assert pressure.defers


def test_what_each_step_costs_grows_with_the_pressure_between_its_bounds() -> None:
    pressure = Pressure()
    assert (pressure.coalesce_ns, pressure.window_ns) == (0, 0)
    settle(pressure, 0.4)
    assert 0 < pressure.coalesce_ns < COALESCE_NS_MAX
    assert WINDOW_NS_MIN <= pressure.window_ns < WINDOW_NS_MAX
    settle(pressure, 1.0)
    assert (pressure.coalesce_ns, pressure.window_ns) == (COALESCE_NS_MAX, WINDOW_NS_MAX)
    assert pressure.retry_after_ns == RETRY_AFTER_NS_MAX
    assert pressure.permille == 1000
