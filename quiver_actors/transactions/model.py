"""The nouns of transactions. Plain values that pickle and travel as JSON; no I/O, no Arrow.

A transaction is decided in epochs: the first epoch that is committed ends it; one that is aborted lets a later run take the next one.
A stage is what one attempt of one partition pushes into one (topic, core). A prepared stage is named by its token.
"""

from __future__ import annotations

import re
from typing import Self

import msgspec

from quiver_actors.errors import InvalidFormat, InvalidId, UsageError

COMMIT = "commit"
ABORT = "abort"
TTL_SECONDS = 12 * 3600.0
"""How long a token waits by default before its worker asks the decision log: longer than the job that it belongs to may take."""

_TXN_ID = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9_.-]{0,127}")


def check_txn_id(txn_id: str) -> str:
    """Return `txn_id` if it may name a transaction: it becomes part of a file name on any file system.

    Raises:
        InvalidId: wrong characters or length.
    """
    if not isinstance(txn_id, str) or not _TXN_ID.fullmatch(txn_id):
        raise InvalidId(
            f"transaction id {txn_id!r} is not allowed: expected 1 to 128 characters of A-Z a-z 0-9 _ . - with no . in front"
        )
    return txn_id


class Token(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One prepared stage: durable, invisible, and kept until it is published or dropped."""

    txn_id: str
    epoch: int
    partition: int
    attempt: int
    node: str
    """Name of the node where the bundles were staged, for routing the publish."""
    topic: str
    core: int
    incarnation: str
    """Incarnation of the engine's directory, in hex; with another one the directory was replaced, and the token is lost."""
    number: int
    """Number of the stage in its engine; an incarnation never uses a number twice."""
    bundles: int
    rows: int
    size_bytes: int
    expires_unix_ns: int
    """UNIX time in nanoseconds from which on the worker asks the decision log."""

    @property
    def place(self) -> tuple[str, int]:
        """The engine that holds it: (topic, core)."""
        return self.topic, self.core

    def encode(self) -> str:
        """Return the token as JSON."""
        return msgspec.json.encode(self).decode()

    @classmethod
    def decode(cls, text: str | bytes) -> Self:
        """
        Raises:
            UsageError: it is no token.
        """
        try:
            return msgspec.json.decode(text, type=cls)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise UsageError(f"this is not a token of a transaction: {error}") from error


class Decision(msgspec.Struct, frozen=True):
    """The decision about one epoch of a transaction, made once and for ever."""

    txn_id: str
    epoch: int
    outcome: str
    """`commit` or `abort`."""
    tokens: tuple[Token, ...] = ()
    """The winners: what is published. None at all for an abort."""
    decided_unix_ns: int = 0
    by: str = ""
    """Name of the client or program that decided, for people."""
    v: int = 1

    @classmethod
    def decode(cls, content: bytes) -> Self:
        """
        Raises:
            InvalidFormat: it is none.
        """
        try:
            return msgspec.json.decode(content, type=cls)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise InvalidFormat(str(error)) from error

    @property
    def is_commit(self) -> bool:
        """Whether the epoch is committed; otherwise it is aborted."""
        return self.outcome == COMMIT

    def lists(self, incarnation: str, number: int) -> bool:
        """Whether that stage is one of the winners."""
        return any(token.incarnation == incarnation and token.number == number for token in self.tokens)
