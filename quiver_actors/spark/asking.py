"""One question to several nodes at once. Nobody waits for a node that leaves meanwhile.

A node that was drained has no entry in the directory of nodes any more. So while answers are late the directory is looked at again. A
node that is down keeps its entry, and is waited for until the question itself gives up.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, TypeVar

from quiver_actors.errors import QuiverError
from quiver_actors.flight.contract import Node

T = TypeVar("T")
L = TypeVar("L")

_ASKED_AT_ONCE = 16
_LATE_SECONDS_FIRST = 0.25
"""After so long without an answer the directory is looked at."""
_LATE_SECONDS_MAX = 2.0
"""The longest time between two looks: each reads all entries, from an object store by a request each."""


@dataclass(frozen=True)
class Watch(Generic[L]):
    """How to find out which nodes an answer cannot come from any more."""

    look: Callable[[], L]
    """Reads the directory; called in a thread of its own, as it may take long. Raises QuiverError: it cannot be read now."""
    gone: Callable[[L], Collection[str]]
    """The names of the nodes that are not where they were asked, by such a look."""


@dataclass(frozen=True)
class Answers(Generic[T]):
    """What became of a question, by name of the node."""

    found: dict[str, T]
    errors: dict[str, QuiverError]
    gone: set[str]
    """Nodes that were not waited for."""


def ask_at_once(nodes: Mapping[str, Node], question: Callable[[Node], T], watch: Watch[L] | None = None) -> Answers[T]:
    """Put a question to nodes, each in a thread of its own, and wait until all have answered or are gone.

    A question to a node that is gone may still be carried out, or end with an error, which nobody hears of.
    """
    answers: Answers[T] = Answers({}, {}, set())
    waiting = list(nodes.items())
    pending: dict[Future[T], str] = {}
    turn = _Turn(watch)
    while waiting or pending:
        while waiting and len(pending) < _ASKED_AT_ONCE:
            name, node = waiting.pop(0)
            pending[in_background(partial(question, node))] = name
        for answered in turn.next_answers(pending):
            _take(answers, pending.pop(answered), answered)
        for given_up in [future for future, name in pending.items() if name in turn.gone]:
            answers.gone.add(pending.pop(given_up))
    return answers


def in_background(call: Callable[[], T]) -> Future[T]:
    """Begin a call in a thread that does not keep the process from ending."""
    future: Future[T] = Future()
    threading.Thread(target=_carry_out, args=(call, future), name="quiver-ask", daemon=True).start()
    return future


def _carry_out(call: Callable[[], T], future: Future[T]) -> None:
    try:
        result = call()
    except BaseException as error:  # noqa: BLE001 - it is raised where the answer is taken
        future.set_exception(error)
    else:
        future.set_result(result)
    # An error refers to this frame, which is not to refer to the error.
    del future


def _take(answers: Answers[T], name: str, answered: Future[T]) -> None:
    try:
        answers.found[name] = answered.result()
    except QuiverError as error:
        answers.errors[name] = error


class _Turn(Generic[L]):
    """Waits for answers, and between them for looks at the directory."""

    def __init__(self, watch: Watch[L] | None) -> None:
        self.gone: set[str] = set()
        self._watch = watch
        self._look: Future[L] | None = None
        self._late_seconds = _LATE_SECONDS_FIRST

    def next_answers(self, pending: Collection[Future[T]]) -> set[Future[T]]:
        """Wait for one of them, or for news of the directory: then there may be none."""
        if self._watch is None:
            return wait(pending, return_when=FIRST_COMPLETED).done
        look = self._look
        if look is None:
            done = wait(pending, self._late_seconds, FIRST_COMPLETED).done
            if not done:
                self._look = in_background(self._watch.look)
                self._late_seconds = min(_LATE_SECONDS_MAX, 2 * self._late_seconds)
            return done
        news: list[Future[Any]] = [*pending, look]
        wait(news, return_when=FIRST_COMPLETED)
        if look.done():
            self._look = None
            with contextlib.suppress(QuiverError):  # The next look may do better.
                self.gone |= set(self._watch.gone(look.result()))
        return {future for future in pending if future.done()}
