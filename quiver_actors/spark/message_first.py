"""The message of an error first, where Spark shows it to a user.

Spark shows what a Python worker raises as a traceback: some twenty frames of ours stand above the line that says what to do. For errors of
ours the user gets that line alone, and the log of the worker process gets the traceback.
"""

from __future__ import annotations

import functools
import inspect
import os
import sys
import traceback
from collections.abc import Callable, Iterator
from typing import Any, ParamSpec, TypeVar, cast

from quiver_actors.errors import QuiverError

P = ParamSpec("P")
T = TypeVar("T")

_HIDE_TRACEBACK = "SPARK_HIDE_TRACEBACK"
"""The environment variable by which Spark's Python workers decide, when they report an exception, to leave out its frames."""


def message_first(function: Callable[P, T]) -> Callable[P, T]:
    """Decorate what Spark calls, a function or a generator function: an error of ours is shown by its message."""
    if inspect.isgeneratorfunction(function):

        @functools.wraps(function)
        def generate(*args: P.args, **kwargs: P.kwargs) -> Iterator[Any]:
            try:
                yield from cast("Iterator[Any]", function(*args, **kwargs))
            except QuiverError:
                _show_message_alone()
                raise

        return cast("Callable[P, T]", generate)

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return function(*args, **kwargs)
        except QuiverError:
            _show_message_alone()
            raise

    return call


def _show_message_alone() -> None:
    """A Python worker of Spark ends after it has reported an exception, so the variable hides no frames of anybody else's error."""
    if _is_spark_worker():
        traceback.print_exc()
        os.environ[_HIDE_TRACEBACK] = "1"


def _is_spark_worker() -> bool:
    """Whether this process belongs to Spark: a driver, or a test, may catch the error and go on."""
    spec = getattr(sys.modules.get("__main__"), "__spec__", None)
    return spec is not None and spec.name.startswith("pyspark.")
