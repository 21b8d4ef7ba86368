"""Parts of the way of like bundles that can be switched off for a measurement: what is slower without one is what the part pays.

Each part is switched off by replacing one function or constant of this process, so that everything else stays as it is.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from quiver_actors.client import grouping
from quiver_actors.store.encoding import runs
from quiver_actors.store.wal import admission, uniform


def _replace(owner: object, name: str, value: object) -> None:
    """Replace an attribute of a module or class, which must be there."""
    getattr(owner, name)
    setattr(owner, name, value)


def _forms() -> None:
    _replace(runs.RunMemory, "keep_form", _keep_nothing)


def _layout() -> None:
    _forms()
    # An instance sets it to None first, so the class has none to be replaced.
    runs.RunMemory.layout = property(lambda _: None, _keep_nothing)  # type: ignore[assignment]


def _comparison() -> None:
    _replace(grouping.Grouping, "_note", _keep_nothing)


def _runs() -> None:
    _replace(grouping, "fits_run", lambda _: False)


def _rows() -> None:
    _replace(uniform, "_KEPT_SPAN_BYTES_MAX", -1)


def _admission() -> None:
    _replace(admission, "check_uniform", lambda *_: None)


def _keep_nothing(*_: Any) -> None:
    return


PARTS: dict[str, Callable[[], None]] = {
    "forms": _forms,
    "layout": _layout,
    "comparison": _comparison,
    "runs": _runs,
    "rows": _rows,
    "admission": _admission,
}
"""What switches a part off, by the name of the part.

forms        `encoding/forms.py`
layout       forms, and the layout of the last run (`encoding/run_layout.py`)
comparison   with the last bundle (`client/grouping.py`)
runs         `encoding/runs.py`
rows         what follows from the rows of the last message (`wal/uniform.py`)
admission    of a message at once (`wal/uniform.py`)
"""
