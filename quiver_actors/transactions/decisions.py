"""The decision log of transactions: a directory with one small JSON file per decided epoch, `<txn_id>.<epoch>.json`, made once.

Whoever makes the file first decides: the driver that commits, or a worker whose prepared bundles have waited past their time and which
aborts. On a local path the file is made by link(2), and in an object store by a conditional put, so that exactly one of them succeeds.
Other file systems offer no exclusive create through Arrow: there they agree first (`claims`).

Owner: any process. Values of this class may be pickled; nothing is kept open.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeVar

import msgspec

from quiver_actors.base.file_systems import shown
from quiver_actors.errors import (
    DecisionUnavailable,
    DiskError,
    InvalidFormat,
    TransactionAborted,
    TransactionDecided,
    UsageError,
)
from quiver_actors.store.objects.errors import ArchiveError
from quiver_actors.transactions.decision_files import DecisionFiles
from quiver_actors.transactions.locations import files_at
from quiver_actors.transactions.model import ABORT, COMMIT, Decision, Token, check_txn_id

T = TypeVar("T")


class Decisions:
    """The decision log of transactions at one location."""

    def __init__(self, location: str, *, by: str = "", files: DecisionFiles | None = None) -> None:
        """
        Args:
            location: path of a directory, URL of a prefix in an object store, or a URI that pyarrow.fs understands. Made when the first
                decision is.
            by: who decides, for people who look at the files.
            files: where they are, for simulations; None: at the location.
        """
        self.location = location
        self.by = by or f"{os.uname().nodename}/{os.getpid()}"
        self._files = files or files_at(location)

    def __reduce__(self) -> tuple[Callable[[str], Decisions], tuple[str]]:
        return Decisions, (self.location,)

    def __repr__(self) -> str:
        return f"Decisions({shown(self.location)!r})"

    def find(self, txn_id: str) -> Decision | None:
        """The commit of the transaction, None if none of its epochs was committed.

        Raises:
            DecisionUnavailable: the log cannot be read.
        """
        last = self.newest(txn_id)
        return last if last is not None and last.is_commit else None

    def newest(self, txn_id: str) -> Decision | None:
        """The commit of the transaction, else its last abort, None if nothing was decided.

        Raises:
            DecisionUnavailable: the log cannot be read.
        """
        check_txn_id(txn_id)
        last, epoch = None, 0
        while (found := self._read(txn_id, epoch)) is not None:
            last, epoch = found, epoch + 1
            if found.is_commit:
                break
        return last

    def open_epoch(self, txn_id: str) -> int:
        """The epoch that a new run of the transaction belongs to.

        Raises:
            TransactionDecided: it was committed: there is nothing left to run.
            DecisionUnavailable: the log cannot be read.
        """
        last = self.newest(txn_id)
        if last is None:
            return 0
        if last.is_commit:
            raise TransactionDecided(
                f"transaction {txn_id!r} was committed before, in epoch {last.epoch}: publish its tokens"
            )
        return last.epoch + 1

    def decided(self, txn_id: str, epoch: int) -> Decision | None:
        """Return the decision that counts for the stages of that epoch: its own decision, or the commit of an earlier one."""
        for earlier in range(epoch + 1):
            found = self._read(txn_id, earlier)
            if found is None:
                return None
            if found.is_commit or earlier == epoch:
                return found
        return None

    def commit(self, txn_id: str, epoch: int, tokens: Sequence[Token]) -> Decision:
        """Decide that these tokens are the transaction. The same call again gives the same answer.

        Returns:
            The decision that stands. Publish *its* tokens: another run may have been first.

        Raises:
            TransactionAborted: the epoch was aborted; run the transaction again in the next one.
            DecisionUnavailable: the log cannot be written; nothing or this very decision was made: call again.
        """
        check_txn_id(txn_id)
        foreign = [token for token in tokens if (token.txn_id, token.epoch) != (txn_id, epoch)]
        if foreign:
            raise UsageError(
                f"transaction {txn_id!r}, epoch {epoch}: {foreign[0]} is a token of another transaction or epoch"
            )
        decided = self.newest(txn_id)
        if decided is not None and decided.is_commit:
            return decided
        decided = self._decide(Decision(txn_id, epoch, COMMIT, tuple(tokens), time.time_ns(), self.by))
        if not decided.is_commit:
            raise TransactionAborted(
                f"transaction {txn_id!r}, epoch {epoch} was aborted by {decided.by}: run it again, in epoch {epoch + 1}"
            )
        return decided

    def abort(self, txn_id: str, epoch: int) -> Decision:
        """Decide that this epoch comes to nothing. The same call again gives the same answer.

        Returns:
            The decision that stands: if it is a commit, nothing may be aborted.

        Raises:
            DecisionUnavailable: the log cannot be written.
        """
        check_txn_id(txn_id)
        decided = self.decided(txn_id, epoch)
        return decided or self._decide(Decision(txn_id, epoch, ABORT, (), time.time_ns(), self.by))

    def remove(self, txn_id: str) -> None:
        """Forget a transaction that is published everywhere and will never be run again.

        Raises:
            DecisionUnavailable: the log cannot be written.
        """
        last = self.newest(txn_id)
        for epoch in range(last.epoch, -1, -1) if last else ():
            name = _name(txn_id, epoch)
            self._guarded(partial(self._files.remove, name))

    # --- private -------------------------------------------------------------------------------------------------------------

    def _read(self, txn_id: str, epoch: int) -> Decision | None:
        content = self._guarded(lambda: self._files.read(_name(txn_id, epoch)))
        if content is None:
            return None
        try:
            found = Decision.decode(content)
        except InvalidFormat as error:
            raise DecisionUnavailable(
                f"{shown(self.location)}/{_name(txn_id, epoch)} is not a decision: {error}; "
                "repair or restore the file; until then nothing is decided"
            ) from error
        if (found.txn_id, found.epoch) != (txn_id, epoch) or found.outcome not in (COMMIT, ABORT):
            raise DecisionUnavailable(
                f"{shown(self.location)}/{_name(txn_id, epoch)} holds the decision of another transaction or epoch: restore the file"
            )
        return found

    def _decide(self, decision: Decision) -> Decision:
        name = _name(decision.txn_id, decision.epoch)
        self._guarded(lambda: self._files.create(name, msgspec.json.encode(decision)))
        decided = self._read(decision.txn_id, decision.epoch)
        if decided is None:
            raise DecisionUnavailable(
                f"{shown(self.location)}/{name} was created and has been deleted since: restore it; decisions must not be deleted"
            )
        return decided

    def _guarded(self, action: Callable[[], T]) -> T:
        try:
            return action()
        except (OSError, DiskError, ArchiveError, InvalidFormat) as error:
            raise DecisionUnavailable(
                f"decision log {shown(self.location)} cannot be used: {error}; prepared stages are kept; try again"
            ) from error


def _name(txn_id: str, epoch: int) -> str:
    return f"{txn_id}.{epoch}.json"
