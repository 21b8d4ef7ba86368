"""The status document as text for people: a headline, then tables, worst first. Pure: a view in, lines out."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from quiver_actors.base.units import format_duration, format_size
from quiver_actors.store.status.archive_view import archive_lines
from quiver_actors.store.status.status_document import (
    EngineView,
    ErrorView,
    NodeView,
    StatusView,
    SubscriberView,
    WorkerView,
    severity,
)
from quiver_actors.store.status.status_storage import kept_lines

if TYPE_CHECKING:
    from quiver_actors.cli.documents.backlog import BehindView

_RED, _YELLOW, _GREEN, _PLAIN = "\x1b[31m", "\x1b[33m", "\x1b[32m", "\x1b[0m"
UNKNOWN = "-"
NOBODY = "nobody"
_MESSAGE_CHARACTERS = 76
_LINE_CHARACTERS = 100
_PROBLEMS_SHOWN = 6
ROWS_SHOWN = 20
"""Topics that are well, and subscribers, unless all are asked for."""


class Column(NamedTuple):
    """A column of the status tables: its heading, and whether it holds numbers or states."""

    heading: str
    is_number: bool = False
    is_state: bool = False


def render(status: StatusView, *, colour: bool, in_full: bool = False) -> str:
    """The whole text, without a final newline.

    Args:
        in_full: a line for each topic and core, and all subscribers; else the cores of a topic that is well are one line, and what
            is well and small is counted only.
    """
    sections = [
        _headline(status.node, colour),
        _workers(status.workers, colour),
        _with_more(
            _engines(status.engines, colour) if in_full else _topics(status.engines, colour), _what_counts(status)
        ),
        render_subscribers(status.subscribers, most=None if in_full else ROWS_SHOWN),
        _transactions(status.engines),
        _storage(status),
        archive_lines(status.archives, status.archive_streams),
        _upkeep(status.engines),
        _memory(status),
        _errors(status),
    ]
    return "\n\n".join(section for section in sections if section)


def _headline(node: NodeView, colour: bool) -> str:
    lines = ["  ".join(_facts(node, _painted(node.state, node.state.upper(), colour)))]
    if not node.running:
        age = _duration(node.figures_age_ns)
        lines.append(f"NOT RUNNING: its supervisor is dead; what follows is what it said last, {age} ago")
    elif node.state in ("silent", "stopped"):
        lines.append(f"the supervisor is {node.state}: its own figures are {_duration(node.figures_age_ns)} old")
    if node.running:
        lines += [f"  {problem}" for problem in node.problems[:_PROBLEMS_SHOWN]]
        if (more := len(node.problems) - _PROBLEMS_SHOWN) > 0:
            lines.append(f"  and {more:,} more")
        lines += [f"  {warning}" for warning in node.warnings]
    for advice in node.advice:
        first, *others = _wrapped(f"-> {advice}", _LINE_CHARACTERS)
        lines += [f"  {first}", *(f"     {line}" for line in others)]
    return "\n".join(lines)


def _facts(node: NodeView, state: str) -> list[str]:
    if node.run_dir == node.data_dir:  # of `status --data-dir`: a store has no process of its own
        return [f"quiver store {state}", f"data {node.data_dir}", "opened for this look alone"]
    up = [f"up {_duration(node.uptime_ns)}"] if node.running else []
    return [f"quiver node {state}", f"pid {node.pid}", *up, f"data {node.data_dir}", f"run {node.run_dir}"]


def _workers(workers: Sequence[WorkerView], colour: bool) -> str:
    columns = [
        Column("WORKER"),
        Column("STATE", is_state=True),
        *[Column(name, is_number=True) for name in ("PID", "CPU", "CPU%", "RESTARTS", "UP", "AGE", "CLIENTS")],
        Column("LAST EXIT"),
    ]
    rows = [
        [
            f"core_{worker.core}",
            worker.state,
            _or_unknown(worker.pid),
            _or_unknown(worker.cpu),
            UNKNOWN if worker.cpu_percent is None else f"{worker.cpu_percent:.0f}%",
            str(worker.restarts),
            _duration(worker.uptime_ns),
            _duration(worker.figures_age_ns),
            str(worker.sessions),
            _or_unknown(worker.last_exit),
        ]
        for worker in workers
    ]
    return _table(columns, rows, colour)


def _storage(status: StatusView) -> str:
    """Show what is kept and why, and the use of the size cap by core; without a cap and without pressure only what is kept."""
    storage = status.storage
    if not storage.cap_bytes and not any(core.steps for core in status.cores):
        return "\n".join(kept_lines(status.retention))
    rows = [
        [
            f"core_{core.core}",
            format_size(core.used_bytes),
            UNKNOWN if core.grant_bytes is None else format_size(core.grant_bytes),
            UNKNOWN if core.cap_fraction is None else f"{100 * core.cap_fraction:.0f}%",
            f"{core.pressure:.2f}",
            ", ".join(core.steps) or UNKNOWN,
        ]
        for core in status.cores
    ]
    columns = [Column("DISK OF"), *[Column(name, is_number=True) for name in ("USED", "GRANT", "OF CAP", "PRESSURE")]]
    lines = [_table([*columns, Column("EASING BY")], rows, False)]
    if storage.cap_bytes:
        over = "; over its soft limit" if storage.is_over else ""
        lines.append(f"{format_size(storage.used_bytes)} of {format_size(storage.cap_bytes)} used{over}")
    lines += [
        f"{share.topic}: {format_size(share.used_bytes)} of the {format_size(share.limit_bytes)} that it may have"
        + ("; pushes wait" if share.wanted_bytes else "")
        for share in status.shares
    ]
    lines += [
        f"{loss.topic} on core_{loss.core}: {loss.bundles:,} bundles ({format_size(loss.size_bytes)}) lost, {loss.reason}"
        for loss in status.losses
        if loss.bundles
    ]
    return "\n".join([*lines, *kept_lines(status.retention)])


def _topics(engines: Sequence[EngineView], colour: bool) -> str:
    """List engines that are not ready, by core and worst first, then one line for each topic, the largest on disk first."""
    worse = [engine for engine in engines if engine.state != "ready"]
    well: dict[str, list[EngineView]] = {}
    for engine in engines:
        if engine.state == "ready":
            well.setdefault(engine.topic, []).append(engine)
    groups = sorted(well.values(), key=lambda cores: (-sum(each.disk_bytes for each in cores), cores[0].topic))
    rows = [_engine_row(f"core_{engine.core}", [engine]) for engine in worse]
    rows += [_engine_row(_places(cores), cores) for cores in groups[:ROWS_SHOWN]]
    hidden = [engine for cores in groups[ROWS_SHOWN:] for engine in cores]
    return _with_more(_engine_table(rows, colour), _hidden_topics(hidden))


def _what_counts(status: StatusView) -> str:
    """Which columns are contents, and since when the others count."""
    since = min((each.in_since_unix_ns for each in status.engines if each.in_since_unix_ns), default=0)
    if not since:
        return ""
    ago = format_duration(max(0, status.taken_unix_ns - since))
    return f"BUNDLES, ROWS and SIZE are stored now; IN counts bundles that came in since the workers started, {ago} ago at most"


def _places(cores: Sequence[EngineView]) -> str:
    return f"core_{cores[0].core}" if len(cores) == 1 else f"{len(cores)} cores"


def _hidden_topics(hidden: Sequence[EngineView]) -> str:
    if not hidden:
        return ""
    topics, disk_bytes = len({engine.topic for engine in hidden}), sum(engine.disk_bytes for engine in hidden)
    return f"and {topics:,} more topics, ready, {format_size(disk_bytes)} on disk together: --all shows them"


def _engines(engines: Sequence[EngineView], colour: bool) -> str:
    return _engine_table([_engine_row(f"core_{engine.core}", [engine]) for engine in engines], colour)


def _engine_row(place: str, cores: Sequence[EngineView]) -> list[str]:
    def total(figure: Callable[[EngineView], int]) -> int:
        return sum(map(figure, cores))

    return [
        cores[0].topic,
        cores[0].state,
        place,
        f"{total(lambda each: each.stored_bundles):,}",
        f"{total(lambda each: each.stored_rows):,}",
        format_size(total(lambda each: each.stored_bytes)),
        f"{total(lambda each: each.segments):,}",
        format_size(total(lambda each: each.disk_bytes)),
        f"{total(lambda each: each.bundles_in):,}",
        _duration(_largest(each.figures_age_ns for each in cores)),
    ]


def _engine_table(rows: Sequence[Sequence[str]], colour: bool) -> str:
    numbers = ("BUNDLES", "ROWS", "SIZE", "SEGMENTS", "DISK", "IN", "AGE")
    columns = [Column("TOPIC"), Column("STATE", is_state=True), Column("ON")]
    return _table([*columns, *[Column(name, is_number=True) for name in numbers]], rows, colour) if rows else ""


def _with_more(text: str, more: str) -> str:
    return f"{text}\n{more}" if more else text


def _transactions(engines: Sequence[EngineView]) -> str:
    """Show the transactions that wait for a decision; empty if there are none."""
    waiting = [engine for engine in engines if engine.prepared_stages]
    if not waiting:
        return ""
    stages = sum(engine.prepared_stages for engine in waiting)
    size_bytes = sum(engine.staged_bytes for engine in waiting)
    oldest_ns = max(engine.oldest_prepared_age_ns or 0 for engine in waiting)
    return f"transactions: {stages:,} staged, {format_size(size_bytes)}, wait for a decision, the oldest for {_duration(oldest_ns)}"


def render_lags(subscribers: Sequence[BehindView]) -> str:
    """How far behind each subscriber is, one line each; empty where there is none."""
    if not subscribers:
        return ""
    numbers = [
        Column(name, is_number=True) for name in ("LAG", "OLDEST", "CLAIMED", "BLOCKED", "READERS", "ORPHAN FOR")
    ]
    rows = [
        [
            each.subscriber,
            each.topic,
            f"{each.lag_bundles:,}",
            _duration(each.oldest_age_ns),
            f"{each.claimed:,}",
            f"{each.blocked:,}",
            str(each.connections or NOBODY),
            _duration(each.detached_ns),
        ]
        for each in subscribers
    ]
    return _table([Column("SUBSCRIBER"), Column("TOPIC"), *numbers], rows, colour=False)


def render_subscribers(subscribers: Sequence[SubscriberView], most: int | None = None) -> str:
    """Return one line for each subscriber, the furthest behind first, summed over its cores."""
    grouped: dict[tuple[str, str], list[SubscriberView]] = {}
    for each in subscribers:
        grouped.setdefault((each.topic, each.subscriber), []).append(each)
    if not grouped:
        return ""
    numbers = ("LAG", "OLDEST", "CLAIMED", "ACKED", "REJECTED", "READERS", "AGE")
    columns = [Column("SUBSCRIBER"), Column("TOPIC"), *[Column(name, is_number=True) for name in numbers]]
    rows = sorted(
        ((_total(cores, _lag), topic, subscriber, cores) for (topic, subscriber), cores in grouped.items()),
        key=lambda row: (-row[0], row[1], row[2]),
    )
    hidden = rows[most:] if most is not None else []
    text = _table(columns, [_subscriber_row(*row) for row in rows[:most]], colour=False)
    return _with_more(
        text, f"and {len(hidden):,} more, {hidden[0][0]:,} bundles behind at most: --all shows them" if hidden else ""
    )


def _subscriber_row(lag_bundles: int, topic: str, subscriber: str, cores: list[SubscriberView]) -> list[str]:
    return [
        subscriber,
        topic,
        f"{lag_bundles:,}",
        _duration(_largest(each.oldest_age_ns for each in cores)),
        f"{_total(cores, lambda each: each.claimed):,}",
        f"{_total(cores, lambda each: each.acked):,}",
        f"{_total(cores, lambda each: each.rejected):,}",
        str(max(each.connections for each in cores) or NOBODY),
        _duration(_largest(each.figures_age_ns for each in cores)),
    ]


def _upkeep(engines: Sequence[EngineView]) -> str:
    """How old the oldest check of a sealed segment is, and what compaction has brought, over all topics and cores."""
    if not engines:
        return ""
    ages = [engine.last_scrub_age_ns for engine in engines if engine.segments]
    if not ages:
        scrub = "none stored"
    else:
        scrub = "not all scrubbed yet" if None in ages else f"last scrub {_duration(_largest(ages))} ago"
    return (
        f"sealed segments: {scrub}, {format_size(sum(engine.scrubbed_bytes for engine in engines))} scrubbed, "
        f"{format_size(sum(engine.compacted_bytes_saved for engine in engines))} saved by "
        f"{sum(engine.compactions for engine in engines):,} compactions"
    )


def _memory(status: StatusView) -> str:
    memory = status.shared_memory
    return (
        f"shared memory {format_size(memory.total_bytes)}: arenas {format_size(memory.arena_bytes)}, "
        f"{format_size(memory.arena_used_bytes)} of it in use, counters {format_size(memory.counters_bytes)}"
    )


def _errors(status: StatusView) -> str:
    if not status.errors:
        return ""
    columns = [Column("ERROR OF"), Column("AGE", is_number=True), Column("COUNT", is_number=True), Column("MESSAGE")]
    rows = [row for error in status.errors for row in _error_rows(error)]
    return _table(columns, rows, colour=False)


def _error_rows(error: ErrorView) -> list[list[str]]:
    """The whole message: what to do stands at its end."""
    first, *others = _wrapped(error.message, _MESSAGE_CHARACTERS)
    return [
        [f"core_{error.core}", _duration(error.age_ns), str(error.count), first],
        *(["", "", "", line] for line in others),
    ]


# --- text ----------------------------------------------------------------------------------------------------------------


def _table(columns: Sequence[Column], rows: Sequence[Sequence[str]], colour: bool) -> str:
    widths = [
        max(len(column.heading), *(len(row[index]) for row in rows)) if rows else len(column.heading)
        for index, column in enumerate(columns)
    ]
    lines = [_line(columns, widths, [column.heading for column in columns], colour=False)]
    lines += [_line(columns, widths, row, colour) for row in rows]
    return "\n".join(lines)


def _line(columns: Sequence[Column], widths: Sequence[int], cells: Sequence[str], colour: bool) -> str:
    placed = []
    for column, width, cell in zip(columns, widths, cells, strict=True):
        text = cell.rjust(width) if column.is_number else cell.ljust(width)
        placed.append(_painted(cell, text, colour) if column.is_state else text)
    return "  ".join(placed).rstrip()


def _painted(state: str, text: str, colour: bool) -> str:
    if not colour:
        return text
    paint = _GREEN if state == "ready" else _RED if severity(state) <= severity("stopped") else _YELLOW
    return f"{paint}{text}{_PLAIN}"


def _wrapped(text: str, width: int) -> list[str]:
    """At least one line."""
    # Imported here: what is well should be shown fast.
    import textwrap

    return textwrap.wrap(" ".join(text.split()), width) or [""]


def _duration(duration_ns: int | None) -> str:
    return UNKNOWN if duration_ns is None else format_duration(duration_ns)


def _or_unknown(value: object) -> str:
    return UNKNOWN if value is None else str(value)


def _largest(values: Iterable[int | None]) -> int | None:
    return max((value for value in values if value is not None), default=None)


def _total(cores: Iterable[SubscriberView], figure: Callable[[SubscriberView], int]) -> int:
    return sum(map(figure, cores))


def _lag(subscriber: SubscriberView) -> int:
    return subscriber.lag_bundles
