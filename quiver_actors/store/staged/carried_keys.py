"""Joins the windows that several cores hold of the same idempotent producers. Pure. See `store.staged.keys`.

A producer stores at one core at a time, and takes its window along to the next. So the windows that cores hold of it overlap or touch: the
later one begins as a copy of the earlier one. Where they do not, nobody remembers what lies between.

| windows of one producer                | the window that becomes of them                                                          |
|----------------------------------------|------------------------------------------------------------------------------------------|
| one                                    | that one                                                                                 |
| all overlap or touch                   | from the lowest floor to the highest end, with the runs of all                           |
| there are gaps between them            | the same of those above the last gap: what is below is too old                           |
| the end of one is not known            | the last runs without a gap among them, and its end is not known: what is forgotten there |
|                                        | may be anything that no other window has                                                 |
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from quiver_actors.store.staged.keys import KeyRun, Window, Windows


def carry(
    own: Windows, others: Sequence[tuple[int, Windows]], is_wanted: Callable[[str], bool], generation: int
) -> Windows:
    """The windows of one core with those that other cores hold of the wanted producers.

    Args:
        own: the core's own windows, which stay as they are.
        others: the windows of other cores, each with the number of its core.
        generation: the generation of the data directory in which that is done.

    Returns:
        Windows whose runs name the core that they are stored on, where that is another one.
    """
    found: dict[str, list[Window]] = {name: [window] for name, window in own.items()}
    carried: dict[str, list[Window]] = {}
    for core, windows in others:
        for name, window in windows.items():
            if is_wanted(name):
                carried.setdefault(name, found.pop(name, [])).append(_placed(window, core))
    made = Windows()
    for name, parts in (found | carried).items():
        _put(made, name, parts)
    made.recovered_in, made.settled_in = own.recovered_in, generation
    return made


def _placed(window: Window, core: int) -> Window:
    placed = Window(window.floor)
    placed.runs = [run if run.core >= 0 else run._replace(core=core) for run in window.runs]
    placed.is_end_known = window.is_end_known
    return placed


def _put(made: Windows, name: str, parts: Sequence[Window]) -> None:
    is_end_known = all(part.is_end_known for part in parts)
    joined = _joined(parts)
    runs = _merged(joined)
    floor = min(part.floor for part in joined)
    if len(parts) > 1 and not is_end_known:
        runs = _behind_last_gap(runs)
        floor = runs[0].first
    for run in runs:
        made.add(name, run, floor)
    if not is_end_known:
        made.leave_open(name)


def _joined(parts: Sequence[Window]) -> list[Window]:
    """The windows above the last gap between them."""
    joined: list[Window] = []
    for part in sorted(parts, key=lambda part: part.floor):
        if joined and part.floor > max(each.following for each in joined):
            joined.clear()
        joined.append(part)
    return joined


def _merged(parts: Sequence[Window]) -> list[KeyRun]:
    """The runs of all windows, rising and apart. Bundles that several windows name are stored once, and each says where."""
    merged = Window(0)
    for part in parts:
        for run in part.runs:
            merged.add_unknown(run)
    return merged.runs


def _behind_last_gap(runs: Sequence[KeyRun]) -> list[KeyRun]:
    behind = [runs[-1]]
    for run in reversed(runs[:-1]):
        if run.end != behind[0].first:
            break
        behind.insert(0, run)
    return behind
