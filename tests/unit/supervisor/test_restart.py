from quiver_actors.supervisor.restart import RestartHistory
from quiver_actors.supervisor.spec import MILLISECOND_NS, SECOND_NS, RestartPolicy


def test_died_again_and_again_doubles_up_to_the_maximum() -> None:
    history = RestartHistory(RestartPolicy(intensity_count=100))
    delays = [history.died(now_ns=n * SECOND_NS, lived_ns=0) for n in range(10)]
    assert delays == [100 * MILLISECOND_NS << n for n in range(7)] + [10 * SECOND_NS] * 3


def test_died_after_a_long_life_starts_from_the_first_backoff() -> None:
    history = RestartHistory(RestartPolicy())
    for n in range(5):
        history.died(n * SECOND_NS, 0)
    assert history.died(100 * SECOND_NS, lived_ns=60 * SECOND_NS) == 100 * MILLISECOND_NS


def test_died_more_often_than_the_window_allows_gives_up() -> None:
    history = RestartHistory(RestartPolicy(intensity_count=3, intensity_window_ns=60 * SECOND_NS))
    assert [history.died(n * SECOND_NS, 0) is None for n in range(4)] == [False, False, False, True]


def test_died_as_often_but_outside_the_window_goes_on() -> None:
    history = RestartHistory(RestartPolicy(intensity_count=3, intensity_window_ns=60 * SECOND_NS))
    assert None not in [history.died(n * 20 * SECOND_NS, 0) for n in range(50)]


def test_defaults_a_child_that_never_starts_is_given_up_within_a_minute() -> None:
    """The doubling delays must leave room for eleven deaths in the window, or the limit could never be reached."""
    history, now_ns = RestartHistory(RestartPolicy()), 0
    while (delay_ns := history.died(now_ns, 0)) is not None:
        now_ns += delay_ns
        assert now_ns < 60 * SECOND_NS


def test_died_a_thousand_times_keeps_the_delay_small_and_the_memory_bounded() -> None:
    history = RestartHistory(RestartPolicy())
    delays = [history.died(n * 20 * SECOND_NS, 0) for n in range(1000)]
    assert delays[-1] == 10 * SECOND_NS
