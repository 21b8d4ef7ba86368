"""Callers of a Flight server: who calls, what the caller may do, and in which form errors travel to it.

A caller has no user id: a token says who it is (`rights.TokenHolder`), and the table of rights what it may do. Where a server has no token,
it listens on loopback alone, and whoever reaches it there does everything.
"""

from __future__ import annotations

import functools
import hmac
import logging
from collections.abc import Callable, Iterator, Mapping
from typing import Any, ParamSpec, TypeVar

import msgspec
import pyarrow as pa
import pyarrow.flight as fl

from quiver_actors.base.config.tree import TokenSettings
from quiver_actors.base.rights import Caller, TokenHolder, require
from quiver_actors.base.topic_hints import without_hint
from quiver_actors.errors import ConfigError, NotAllowed, ProtocolError, QuiverError, QuotaExceeded, UnknownTopic
from quiver_actors.flight.contract import ERROR_PREFIX, Look, Publish, ReadTicket, Request, TableTicket
from quiver_actors.flight.token_file import read_token
from quiver_actors.flight.token_limit import TokenLimit
from quiver_actors.supervisor.log import log_event
from quiver_actors.transactions import Token

EVERYBODY = TokenHolder("(none)", Caller.ADMIN, frozenset())
"""The caller of a server that has no tokens."""
MIDDLEWARE = "token"
CALLS_MAX = 256
"""Most calls of one token that may be under way. Each has a thread of the server; a subscription that waits for bundles is one."""
_OFFERED = frozenset(
    [
        fl.FlightMethod.DO_ACTION,
        fl.FlightMethod.DO_GET,
        fl.FlightMethod.DO_PUT,
        fl.FlightMethod.LIST_ACTIONS,
        fl.FlightMethod.LIST_FLIGHTS,
        fl.FlightMethod.GET_FLIGHT_INFO,
    ]
)
_NO_MEMORY = (
    "the server has no memory left for it: what a message becomes when it is decompressed counts, and all calls together have what "
    "serve.memory allows. Send or ask for less at once, uncompressed, or call again later"
)
_P = ParamSpec("_P")
_T = TypeVar("_T")


def holders_of(tokens: Mapping[str, TokenSettings]) -> dict[str, TokenHolder]:
    """Return the token holders of `[serve.tokens]`, by token; reads the token files.

    Raises:
        ConfigError: a file is no token file, or two hold the same token.
        DiskError: a file cannot be read.
    """
    found: dict[str, TokenHolder] = {}
    for name, each in tokens.items():
        token = read_token(each.file)
        if token in found:
            raise ConfigError(f"tokens {found[token].name!r} and {name!r} have the same value: give each its own token")
        found[token] = TokenHolder(name, Caller(each.role), frozenset(each.topics))
    return found


def call_limit() -> TokenLimit:
    """Return the counts of a server's calls."""
    return TokenLimit(
        CALLS_MAX,
        "{holder} has {most} calls under way, as many as one token may have: nothing was done for this one. "
        "Call again when others have ended, or use fewer threads and subscriptions",
    )


class TokenCheck(fl.ServerMiddlewareFactory):  # type: ignore[misc]  # pyarrow has no types
    """Lets calls through that carry a token, not too many of one token at a time, and remembers whose it is."""

    def __init__(self, holders: Mapping[str, TokenHolder], limit: TokenLimit) -> None:
        """`holders`: by token; empty: everybody is let through, and counts as one."""
        self._limit = limit
        self._holders = {f"Bearer {token}".encode(): holder for token, holder in holders.items()}

    def start_call(self, info: fl.CallInfo, headers: dict[str, list[Any]]) -> _Identified:
        """Identify the caller by its bearer token before the call begins; refuse a missing or unknown token if tokens are set."""
        holder = self._holder(headers) if self._holders else EVERYBODY
        self._check_offered(info.method)
        try:
            self._limit.begin(holder)
        except QuotaExceeded as error:
            refusal = fl.FlightServerError(f"{ERROR_PREFIX}{error.code}:{error}")
        else:
            return _Identified(holder, self._limit)
        # Outside of the handler, so that no traceback travels.
        raise refusal

    def _holder(self, headers: dict[str, list[Any]]) -> TokenHolder:
        sent = next(iter(headers.get("authorization", [])), "")
        found = None
        # All are compared, so that the time says nothing about any of them.
        for expected, holder in self._holders.items():
            if hmac.compare_digest(sent.encode() if isinstance(sent, str) else sent, expected):
                found = holder
        if found is None:
            raise fl.FlightUnauthenticatedError("the call has no token, or a token that this node does not know")
        return found

    def _check_offered(self, method: fl.FlightMethod) -> None:
        """Here and not in handlers: pyarrow lets a traceback out of some that it has no error for."""
        if method not in _OFFERED:
            raise fl.FlightServerError(
                f"{ERROR_PREFIX}{ProtocolError.code}:{method.name} is not offered here: expected an action, DO_GET with a ticket, DO_PUT, "
                "GET_FLIGHT_INFO or LIST_FLIGHTS"
            )


class _Identified(fl.ServerMiddleware):  # type: ignore[misc]
    """One call that is under way."""

    def __init__(self, holder: TokenHolder, limit: TokenLimit) -> None:
        self.holder = holder
        self._limit = limit

    def call_completed(self, exception: BaseException | None) -> None:
        """Count the call as ended, however it ended."""
        self._limit.end(self.holder)


def holder_of(context: fl.ServerCallContext) -> TokenHolder:
    """Return the token holder that makes the call."""
    identified = context.get_middleware(MIDDLEWARE)
    if not isinstance(identified, _Identified):
        raise NotAllowed("the caller is not known: send a token of this node")
    return identified.holder


def check_allowed(holder: TokenHolder, request: Request | ReadTicket | TableTicket) -> None:
    """
    Raises:
        NotAllowed: the table of rights says no, for one of the topics that the request is about.
        ProtocolError: a token of a transaction cannot be read.
    """
    row = f"flight.{type(request).__name__}"
    if isinstance(request, Publish):
        topics = {Token.decode(token).topic for token in request.tokens}
    else:
        topics = {request.topic}
    for topic in sorted(topics):
        require(holder, holder.caller(topic), row, f"topic {topic!r}")
        if isinstance(request, Look) and request.hold is not None:
            require(holder, holder.caller(topic), f"{row}: hold", f"topic {topic!r}")


def check_topic(holder: TokenHolder, row: str, topic: str) -> None:
    """
    Raises:
        NotAllowed: the table of rights says no for this topic.
    """
    require(holder, holder.caller(topic), row, f"topic {topic!r}")


def explained(call: Callable[_P, _T]) -> Callable[_P, _T]:
    """A handler whose errors travel with our message and code; anything unexpected goes to the log of the server alone."""

    @functools.wraps(call)
    def handler(*arguments: _P.args, **named: _P.kwargs) -> _T:
        try:
            return call(*arguments, **named)
        except fl.FlightError:
            raise
        except UnknownTopic as error:
            hides_topics = any(_is_of_some_topics(each) for each in arguments)
            travelling = _travelling(without_hint(error) if hides_topics else error, call.__name__)
        except Exception as error:  # noqa: BLE001 - whatever it is, no traceback leaves the server
            travelling = _travelling(error, call.__name__)
        # Outside of the handler of the error, so that it does not travel as the cause.
        raise travelling

    return handler


def _is_of_some_topics(argument: object) -> bool:
    """Whether an argument of a handler is the context of a caller whose token names topics: it may not know the names of others."""
    return isinstance(argument, fl.ServerCallContext) and bool(holder_of(argument).topics)


def explaining(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield the batches, and turn an error of the iterator into a Flight error, as `explained` does."""

    @explained
    def read() -> pa.RecordBatch | None:
        try:
            return next(batches, None)
        except UnknownTopic as error:
            # Whose stream it is, is not known here.
            raise without_hint(error) from None

    while (batch := read()) is not None:
        yield batch


def _travelling(error: Exception, where: str) -> fl.FlightError:
    if isinstance(error, NotAllowed):
        return fl.FlightUnauthorizedError(f"{ERROR_PREFIX}{error.code}:{error}")
    if isinstance(error, QuiverError):
        return fl.FlightServerError(f"{ERROR_PREFIX}{error.code}:{error}", b"%d" % error.retry_after_ns)
    if isinstance(error, (msgspec.DecodeError, UnicodeDecodeError)):
        return fl.FlightServerError(f"{ERROR_PREFIX}{ProtocolError.code}:{error}")
    if isinstance(error, MemoryError):
        return fl.FlightServerError(f"{ERROR_PREFIX}{QuotaExceeded.code}:{_NO_MEMORY}")
    log_event("serve.failed", {"call": where, "reason": f"{type(error).__name__}: {error}"}, logging.ERROR)
    why = f"the server failed in {where} ({type(error).__name__}); its log says more"
    return fl.FlightServerError(f"{ERROR_PREFIX}{ProtocolError.code}:{why}")
