"""Rates and levels of topics and subscribers, for the plots of their pages, and that they outlive the process that serves the page."""

from __future__ import annotations

from pathlib import Path

import msgspec

from quiver_actors.cli.web.history import History, node_series
from quiver_actors.cli.web.history_file import _SIZE_BYTES_MAX, NAME, load_history, save_history
from quiver_actors.cli.web.place_history import PLACES_MAX, SubscriberSample, series
from quiver_actors.store.status.status_document import EngineView, StatusView, SubscriberView
from tests.unit.cli.web.documents import document, filled

SECOND_NS = 1_000_000_000


def at(seconds: int, base: int, topic: str = "clicks", cores: int = 2) -> StatusView:
    """A topic with a subscriber on some cores, all of whose counts begin at `base`."""
    engines = [filled(EngineView, base, topic=topic, core=core, state="ready") for core in range(cores)]
    subscribers = [filled(SubscriberView, base, topic=topic, subscriber="billing", core=core) for core in range(cores)]
    return msgspec.structs.replace(
        document(unix_ns=seconds * SECOND_NS), engines=[*document().engines, *engines], subscribers=subscribers
    )


def test_cores_of_a_topic_count_together() -> None:
    history = History()
    history.add(at(1, 100))
    history.add(at(6, 150))
    first, second = series(history.samples(), "clicks")
    assert (first["running"], first["bundles_in_per_second"]) == (True, 0)
    assert second["bundles_in_per_second"] == 20
    engines = [each for each in at(6, 150).engines if each.topic == "clicks"]
    assert second["stored_bundles"] == sum(each.stored_bundles for each in engines)
    assert second["disk_bytes"] == sum(each.disk_bytes for each in engines)
    (_, other) = series(history.samples(), "default")
    assert (other["running"], other["bundles_in_per_second"]) == (True, 0)


def test_cores_of_a_subscriber_count_together_and_the_oldest_bundle_counts() -> None:
    history = History()
    history.add(at(1, 100))
    history.add(at(6, 150))
    _, second = series(history.samples(), "clicks", "billing")
    assert (second["delivered_per_second"], second["acked_per_second"]) == (20, 20)
    subscribers = at(6, 150).subscribers
    assert second["lag_bundles"] == sum(each.lag_bundles for each in subscribers)
    assert second["oldest_seconds"] == round(max(each.oldest_age_ns or 0 for each in subscribers) * 1e-9, 3)


def test_a_worker_that_began_anew_and_a_topic_that_is_new_make_no_negative_rate() -> None:
    history = History()
    history.add(at(1, 1000))
    history.add(at(2, 10, cores=3))
    (_, second) = series(history.samples(), "clicks")
    assert isinstance(rate := second["bundles_in_per_second"], float)
    assert rate >= 0


def test_where_there_is_nothing_of_a_place_nothing_is_drawn() -> None:
    history = History()
    history.add(at(1, 100))
    history.add_absence(2 * SECOND_NS)
    history.add(document(unix_ns=3 * SECOND_NS))
    assert [each["running"] for each in series(history.samples(), "clicks")] == [True, False, False]
    assert [each["running"] for each in series(history.samples(), "clicks", "billing")] == [True, False, False]
    assert [each["running"] for each in series(history.samples(), "clicks", "nobody")] == [False] * 3
    fields = {"unix_ns", "running", *SubscriberSample.__struct_fields__}
    assert all(set(each) == fields for each in series(history.samples(), "clicks", "nobody"))
    assert all("topics" not in each for each in node_series(history.samples()))


def test_a_later_process_goes_on_with_the_plots_of_a_topic(tmp_path: Path) -> None:
    history = History()
    history.add(at(1, 100))
    history.add(at(6, 150))
    save_history(str(tmp_path), history.samples())
    later = History(load_history(str(tmp_path), 0))
    later.add(at(11, 200))
    found = series(later.samples(), "clicks")
    assert found[:2] == series(history.samples(), "clicks")
    assert [each["running"] for each in found] == [True] * 3
    assert series(later.samples(), "clicks", "billing")[1]["delivered_per_second"] == 20


def test_a_sample_keeps_the_busiest_and_its_file_can_be_read_again(tmp_path: Path) -> None:
    names = [f"{number:064}" for number in range(PLACES_MAX + 20)]
    engines = [
        filled(EngineView, 1 << 40, topic=name, core=0, state="ready", disk_bytes=n) for n, name in enumerate(names)
    ]
    subscribers = [
        filled(SubscriberView, 1 << 40, topic=name, subscriber=name, core=0, lag_bundles=n)
        for n, name in enumerate(names)
    ]
    history = History()
    for second in range(180):
        history.add(
            msgspec.structs.replace(document(unix_ns=second * SECOND_NS), engines=engines, subscribers=subscribers)
        )
    sample = history.samples()[-1]
    assert set(sample.topics) == set(names[20:])
    assert set(sample.subscribers) == {f"{name}/{name}" for name in names[20:]}
    save_history(str(tmp_path), history.samples())
    assert (tmp_path / NAME).stat().st_size < _SIZE_BYTES_MAX
    assert load_history(str(tmp_path), 0) == history.samples()
