from __future__ import annotations

from typing import Any

import msgspec
import pytest

from quiver_actors.base.metrics.figures import EngineFigure, SubscriberFigure, WorkerFigure, WorkerState
from quiver_actors.base.units import SECOND_NS, format_size
from quiver_actors.cli.commands.status_table import ROWS_SHOWN, render
from quiver_actors.store.status.advice import ADVICE, advice_on
from quiver_actors.store.status.room import advice_on_room, limit_met, quarantined, waiting_for_room
from quiver_actors.store.status.status_document import (
    WORST_FIRST,
    EngineView,
    ErrorView,
    NodeView,
    SharedMemoryView,
    StatusView,
    SubscriberView,
    WorkerView,
    severity,
    worst,
)
from quiver_actors.store.status.status_storage import RetentionView, ShareView
from quiver_actors.store.status.status_view import ENGINE_STATES

LARGE = 10**10
COLUMNS_MAX = 120


def view(state: str = "ready", *, count: int = 2, running: bool = True, problems: int = 0) -> StatusView:
    """A node with large figures everywhere."""
    engine: dict[str, Any] = dict.fromkeys(EngineView.__struct_fields__, LARGE) | {"limit": 0, "limit_name": ""}
    subscriber: dict[str, Any] = dict.fromkeys(SubscriberView.__struct_fields__, LARGE)
    return StatusView(
        taken_unix_ns=LARGE,
        node=NodeView(
            state=state,
            running=running,
            ready=running,
            healthy=running,
            problems=[f"topic t{number} on core_0 is full" for number in range(problems)],
            advice=advice_on([state]),
            pid=4_000_000,
            data_dir="/var/lib/quiver",
            run_dir="/run/quiver",
            topics=["default"],
            started_unix_ns=LARGE,
            uptime_ns=LARGE,
            figures_age_ns=12_000_000_000,
        ),
        workers=[
            WorkerView(core=core, state=state, process_state="S", pid=4_000_000 + core, cpu=core)
            for core in range(count)
        ],
        engines=[EngineView(**{**engine, "topic": "default", "core": core, "state": state}) for core in range(count)],
        subscribers=[
            SubscriberView(**{**subscriber, "topic": "default", "subscriber": "exporter", "core": core})
            for core in range(count)
        ],
        errors=[ErrorView(core=0, message="x" * 216, count=3, unix_ns=LARGE, age_ns=LARGE)] if count else [],
        shared_memory=SharedMemoryView(arena_bytes=LARGE, arena_used_bytes=1, counters_bytes=1, total_bytes=LARGE),
    )


def test_render_fits_into_a_terminal() -> None:
    assert max(len(line) for line in render(view("recovering", problems=9), colour=False).splitlines()) <= COLUMNS_MAX


@pytest.mark.parametrize(
    ("segments", "age_ns", "shown"),
    [
        (3, 7_500 * SECOND_NS, "last scrub 2h05m ago"),
        (3, None, "not all scrubbed yet"),
        (0, None, "sealed segments: none stored"),
    ],
)
def test_render_says_how_old_the_oldest_check_of_a_segment_is(segments: int, age_ns: int | None, shown: str) -> None:
    status = view()
    changes: dict[str, Any] = {"segments": segments, "last_scrub_age_ns": age_ns}
    engines = [msgspec.structs.replace(engine, **changes) for engine in status.engines]
    assert shown in render(msgspec.structs.replace(status, engines=engines), colour=False)


def test_render_aligns_numbers_to_the_right_under_their_heading() -> None:
    lines = render(view(), colour=False).splitlines()
    heading = next(line for line in lines if line.startswith("WORKER"))
    row = next(line for line in lines if line.startswith("core_1"))
    end = heading.index("PID") + len("PID")
    assert row[:end].endswith("4000001")


@pytest.mark.parametrize(
    ("state", "paint"), [("ready", "\x1b[32m"), ("failed", "\x1b[31m"), ("recovering", "\x1b[33m")]
)
def test_render_in_colour_paints_states_only(state: str, paint: str) -> None:
    text = render(view(state), colour=True)
    assert text.count(paint) == (4 if state == "ready" else 5)
    assert text.replace(paint, "").replace("\x1b[0m", "") == render(view(state), colour=False)


def test_render_without_topics_or_errors_leaves_their_tables_out() -> None:
    status = msgspec.structs.replace(view(count=0), engines=[])
    text = render(status, colour=False)
    assert "WORKER" in text
    assert "TOPIC" not in text
    assert "ERROR" not in text


def many(topics: int) -> StatusView:
    """Topics that are well on two cores each, later ones larger; but for the first, on one of them."""
    (first, second), (one, _) = view().engines, view().subscribers
    engines = [
        msgspec.structs.replace(each, topic=f"t{number:03}", disk_bytes=number, stored_bundles=number)
        for number in range(topics)
        for each in (first, second)
    ]
    engines[0] = msgspec.structs.replace(engines[0], state="full")
    subscribers = [msgspec.structs.replace(one, subscriber=f"s{n:03}", lag_bundles=n) for n in range(topics)]
    return msgspec.structs.replace(view(), engines=engines, subscribers=subscribers)


def test_render_counts_what_is_well_and_small_and_shows_the_rest() -> None:
    lines = render(many(500), colour=False).splitlines()
    assert len(lines) < 70
    topics = [line.split()[:4] for line in lines if line.startswith("t0") or line.startswith("t4")]
    assert topics[0][:3] == ["t000", "full", "core_0"]
    assert topics[1] == ["t499", "ready", "2", "cores"]
    assert next(line for line in lines if line.startswith("t499")).split()[4] == "998", "its cores are summed"
    assert len(topics) == 1 + ROWS_SHOWN
    hidden_bytes = format_size(2 * sum(range(500 - ROWS_SHOWN)))
    assert f"and {500 - ROWS_SHOWN} more topics, ready, {hidden_bytes} on disk together: --all shows them" in lines
    assert f"and {500 - ROWS_SHOWN} more, {500 - ROWS_SHOWN - 1} bundles behind at most: --all shows them" in lines
    in_full = render(many(500), colour=False, in_full=True).splitlines()
    assert sum(line.startswith("t") and "core_" in line for line in in_full) == 1000
    assert sum(line.startswith("s") and line[1:4].isdigit() for line in in_full) == 500


def test_render_says_what_is_wrong_and_what_to_do() -> None:
    lines = render(view("full", problems=9), colour=False).splitlines()
    assert lines[1] == "  topic t0 on core_0 is full"
    assert lines[7] == "  and 3 more"


def test_pushes_that_wait_are_told() -> None:
    calm = view()
    assert waiting_for_room(calm) == []
    assert advice_on_room(calm) == []
    workers = [msgspec.structs.replace(calm.workers[0], pushes_waiting=3)]
    share = ShareView(topic="default", limit_bytes=4096, used_bytes=4096, wanted_bytes=1024)
    pressed = msgspec.structs.replace(calm, workers=workers, shares=[share])
    assert waiting_for_room(pressed) == [
        "pushes wait for room on core_0: 3",
        "pushes to topic default wait: it has 4.00 KiB of the 4.00 KiB that it may have",
    ]


def short_of_room(limit_name: str, *subscribers: tuple[str, int]) -> StatusView:
    """A node whose topic `clicks` gets no room; each subscriber of it is so many bundles behind."""
    calm = view()
    engine = msgspec.structs.replace(
        calm.engines[0], topic="clicks", limit_name=limit_name, limit_bytes=64 << 20, limit_measured_bytes=86 << 20
    )
    engine.stored_bytes = 1
    found = [
        msgspec.structs.replace(calm.subscribers[0], topic="clicks", subscriber=name, lag_bundles=lag)
        for name, lag in subscribers
    ]
    return msgspec.structs.replace(calm, engines=[engine], subscribers=found)


def test_the_limit_that_was_met_is_named_with_its_value() -> None:
    """A disk with 86 MiB free and `min_free` at 64 MiB was told to raise a size cap that was not set."""
    status = short_of_room("retention.min_free")
    assert limit_met(status.engines[0]) == (
        "the file system has 86.0 MiB free, and retention.min_free keeps 64.0 MiB of it free"
    )
    first, second = advice_on_room(status)
    assert first == "free space on the file system of /var/lib/quiver, or lower retention.min_free (64.0 MiB)"
    assert second.startswith("topic clicks has no subscriber and keeps everything: ")
    assert "size_cap (" not in first + second


@pytest.mark.parametrize(
    ("limit_name", "said"),
    [
        ("disk", "free space on the file system of /var/lib/quiver"),
        ("retention.size_cap", "raise retention.size_cap (64.0 MiB)"),
        ("retention.cap_share", "raise retention.cap_share of topic clicks, which gives it 64.0 MiB of the size cap"),
    ],
)
def test_each_limit_has_its_own_way_out(limit_name: str, said: str) -> None:
    assert advice_on_room(short_of_room(limit_name))[0] == said


def test_dropping_a_subscriber_is_advised_only_where_it_frees_something() -> None:
    alone = advice_on_room(short_of_room("disk", ("slow", 7)))[1]
    assert alone.startswith(
        "subscriber slow of topic clicks is 7 bundles behind: start its consumer (dropping it frees nothing"
    )
    among_others = advice_on_room(short_of_room("disk", ("slow", 7), ("fast", 0)))[1]
    assert "or drop it: `quiver subscribers drop slow --topic clicks --dry-run`" in among_others
    caught_up = advice_on_room(short_of_room("disk", ("fast", 0)))[1]
    assert caught_up.startswith("no subscriber of topic clicks is behind")


def test_damaged_files_in_quarantine_are_told() -> None:
    figures: dict[str, Any] = dict.fromkeys(RetentionView.__struct_fields__, 0)
    kept = RetentionView(**{**figures, "topic": "clicks"})
    status = msgspec.structs.replace(view(), retention=[kept])
    assert quarantined(status) == []
    kept.quarantine_bytes = 4096
    assert quarantined(status)[0].startswith("topic clicks on core_0 has 4.00 KiB of damaged files in quarantine")


def test_every_state_but_the_good_one_has_advice() -> None:
    assert set(ADVICE) == set(WORST_FIRST) - {"ready", "full", "throttled"}


def test_render_shows_the_whole_of_a_message() -> None:
    message = "write of 4096 bytes failed: " + "no space left on device " * 5 + "- free some"
    error = ErrorView(core=0, message=message, count=3, unix_ns=LARGE, age_ns=LARGE)
    text = render(msgspec.structs.replace(view(), errors=[error]), colour=False)
    assert " ".join(text.partition("MESSAGE")[2].split()[3:]) == " ".join(message.split())


def test_render_dead_node_says_how_old_its_figures_are() -> None:
    assert "what it said last, 12.0s ago" in render(view("dead", running=False), colour=False)


def test_every_state_has_a_place_in_the_order_of_severity() -> None:
    named = [*ENGINE_STATES.values(), *[state.name.lower() for state in WorkerState]]
    assert {severity(state) for state in named} <= set(range(len(WORST_FIRST)))
    assert worst(["ready", "stopped", "recovering"]) == "stopped"
    assert worst([]) == "ready"


def test_engine_states_are_the_engine_s() -> None:
    engine = pytest.importorskip("quiver_actors.store.engine")
    assert {state.value: state.name.lower() for state in engine.EngineState} == ENGINE_STATES


@pytest.mark.parametrize(("figures", "shown"), [(EngineFigure, EngineView), (SubscriberFigure, SubscriberView)])
def test_every_figure_is_in_the_document(figures: type[EngineFigure], shown: type[msgspec.Struct]) -> None:
    named = {figure.name.lower() for figure in figures} - {"state"}
    if "cold_work" in named:  # two figures in one place of the page
        named = named - {"cold_work"} | {"cold_moved", "cold_away"}
    assert named <= set(shown.__struct_fields__)


def test_every_worker_figure_but_its_turns_is_in_the_document() -> None:
    assert {figure.name.lower() for figure in WorkerFigure} - {"turns"} <= set(WorkerView.__struct_fields__)
