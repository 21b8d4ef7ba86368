"""Questions to a decision log, off the loop thread: it may be on another machine and take its time.

A job never raises; who made it looks at `answer` in its own thread.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from quiver_actors.errors import QuiverError, UsageError
from quiver_actors.transactions.decisions import Decisions
from quiver_actors.transactions.model import ABORT, COMMIT, Decision, Token

OWN_LOG_NAME = "quiver.decisions"
"""The node's own log, in its data directory."""
FIND = "find"


@dataclass(frozen=True, slots=True)
class Answer:
    """What the log says."""

    decision: Decision | None
    problem: str = ""
    """Why there is none."""


class AskJob:
    """What was decided about a prepared stage whose time is over. Where nothing was, the epoch is aborted: a later commit learns of it."""

    def __init__(self, location: str, txn_id: str, epoch: int) -> None:
        self._location = location
        self._txn_id = txn_id
        self._epoch = epoch
        self.answer = Answer(None)

    def run(self) -> None:
        try:
            decisions = Decisions(self._location)
            found = decisions.decided(self._txn_id, self._epoch)
            self.answer = Answer(found or decisions.abort(self._txn_id, self._epoch))
        except QuiverError as error:
            self.answer = Answer(None, str(error))


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
