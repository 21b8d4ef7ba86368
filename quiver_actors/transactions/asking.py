"""Questions to a decision log, off the loop thread: it may be on another machine and take its time.

A job never raises; who made it looks at `answer` in its own thread.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from quiver_actors.errors import QuiverError, UsageError
from quiver_actors.transactions.decisions import Decisions
from quiver_actors.transactions.model import ABORT, COMMIT, Decision, Token

OWN_LOG_NAME = "quiver.decisions"
"""The node's own log, in its data directory."""
FIND = "find"


@dataclass(frozen=True, slots=True)
class Answer:
    """Answer of the decision log."""

    decision: Decision | None
    problem: str = ""
    """Reason why there is no answer; empty if there is one."""


class AskJob:
    """Look up the decision about an expired prepared stage. An undecided epoch is aborted, and a later commit is told so."""

    def __init__(self, location: str, txn_id: str, epoch: int) -> None:
        self._location = location
        self._txn_id = txn_id
        self._epoch = epoch
        self.answer = Answer(None)

    def run(self) -> None:
        """Read the decision, and write an abort if there is none; errors go into `answer`."""
        try:
            decisions = Decisions(self._location)
            found = decisions.decided(self._txn_id, self._epoch)
            self.answer = Answer(found or decisions.abort(self._txn_id, self._epoch))
        except QuiverError as error:
            self.answer = Answer(None, str(error))


class Question(NamedTuple):
    """Which decision is asked for, and in which log."""

    location: str
    txn_id: str
    epoch: int


class FindJob:
    """Look up the decisions about some epochs.

    Args:
        aborts: an undecided epoch is aborted: what follows from the answers cannot be overtaken by a commit. Else it stays undecided.
    """

    def __init__(self, questions: Iterable[Question], *, aborts: bool = False) -> None:
        self.answers = dict.fromkeys(questions, Answer(None))
        self._aborts = aborts

    def run(self) -> None:
        """Look up each question's decision, or make it; errors go into `answers`."""
        for question in self.answers:
            try:
                decisions = Decisions(question.location)
                answer = decisions.abort if self._aborts else decisions.decided
                self.answers[question] = Answer(answer(question.txn_id, question.epoch))
            except QuiverError as error:
                self.answers[question] = Answer(None, str(error))


class DecideJob:
    """One `Decide` of a client about the node's own log."""

    def __init__(self, location: str, txn_id: str, epoch: int, outcome: str, tokens: Sequence[str]) -> None:
        self._location = location
        self._txn_id = txn_id
        self._epoch = epoch
        self._outcome = outcome
        self._tokens = tokens
        self.decision: Decision | None = None
        self.error: QuiverError | None = None

    def run(self) -> None:
        """Commit, abort or look up in the node's own log, as the request asks; sets `decision` or `error`."""
        try:
            self.decision = self._decide(Decisions(self._location))
        except QuiverError as error:
            self.error = error

    def _decide(self, decisions: Decisions) -> Decision | None:
        if self._outcome == FIND:
            return decisions.newest(self._txn_id)
        if self._outcome == ABORT:
            return decisions.abort(self._txn_id, self._epoch)
        if self._outcome == COMMIT:
            return decisions.commit(self._txn_id, self._epoch, [Token.decode(text) for text in self._tokens])
        raise UsageError(f"outcome {self._outcome!r} is not one of {COMMIT}, {ABORT}, {FIND}")
