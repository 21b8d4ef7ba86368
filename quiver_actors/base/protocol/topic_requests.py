"""The messages by which topics are listed and changed, and asking a node for it over its control socket.

A request is answered when the change is durable; `until_applied` waits until every worker that serves has it too.
"""

from __future__ import annotations

import os
import time
from typing import Any

import msgspec

from quiver_actors.base.error_codes import error_classes
from quiver_actors.base.topics import Deletion, Topic
from quiver_actors.base.trust import supervisor_check
from quiver_actors.errors import NotRunning, QuiverError, WorkerUnavailable
from quiver_actors.supervisor import control
from quiver_actors.supervisor.errors import ControlError

SUBJECT = "topics"
PAGE_TOPICS = 16
_LOOK_SECONDS = 0.02


class TopicRequest(msgspec.Struct, frozen=True, kw_only=True, tag_field="op", tag=str.lower):
    """Root of the requests."""


class List(TopicRequest, frozen=True, kw_only=True):
    """Changes nothing. A reply must fit into a socket's buffer: topics come in portions, in the order of their names."""

    after: str = ""
    limit: int = PAGE_TOPICS


class Create(TopicRequest, frozen=True, kw_only=True):
    """Make a topic."""

    topic: str
    values: dict[str, Any] = {}
    """Settings by key, as TOML would give them."""


class Change(TopicRequest, frozen=True, kw_only=True):
    """Give a topic other settings."""

    topic: str
    values: dict[str, Any] = {}
    unset: list[str] = []
    """Keys that are to be again what file or default say."""


class Delete(TopicRequest, frozen=True, kw_only=True):
    """Delete a topic with its bundles and subscribers."""

    topic: str


class Reload(TopicRequest, frozen=True, kw_only=True):
    """Read the configuration again."""


Request = List | Create | Change | Delete | Reload


class TopicReply(msgspec.Struct, frozen=True, kw_only=True):
    """State of the topics after the request."""

    version: int
    applied: dict[str, int | None]
    """The version that each worker has, by its name; None: it does not serve now, and will start with the newest."""
    topics: dict[str, Topic]
    """The topics that the request asked for, by name."""
    deletions: list[Deletion] = []
    said: list[str] = []
    """Sentences about what a reload has changed, and what it could not change."""
    origins: dict[str, dict[str, str]] = {}
    """Origin of each setting that is no default, by topic and key."""
    code: str = ""
    """Code of the error if the request was refused; empty if it was not."""
    error: str = ""


def ask(run_dir: str, request: Request, timeout_seconds: float = 10.0, *, trusted_uid: int | None = None) -> TopicReply:
    """Send a request to the supervisor of a node and take its reply.

    Args:
        trusted_uid: a user whose node is trusted too (`trust`).

    Raises:
        NotRunning: nobody answers there.
        UntrustedNode: the run directory, or who answers in it, is another user's.
        QuiverError: it was refused; of the class that says why.
    """
    path = os.path.join(run_dir, control.SOCKET_NAME)
    try:
        message = control.Ask(subject=SUBJECT, body=msgspec.msgpack.encode(request))
        told = control.request(path, message, timeout_seconds, supervisor_check(run_dir, trusted_uid))
    except ControlError as error:
        raise NotRunning(
            f"no node answers in {run_dir} ({error}): start one with `quiver up --run-dir {run_dir}`, or name another run directory"
        ) from error
    if not isinstance(told, control.Told):
        raise NotRunning(f"the supervisor of {run_dir} does not know of topics: {told}; is it of another version?")
    return reply_in(told.body)


def reply_in(body: bytes) -> TopicReply:
    """Decode a reply. Raises QuiverError: the request was refused; of the class that says why."""
    reply = msgspec.msgpack.decode(body, type=TopicReply)
    if reply.code:
        kind = error_classes().get(reply.code, QuiverError)
        raise kind.__new__(kind, reply.error)
    return reply


def list_topics(run_dir: str) -> TopicReply:
    """All topics of a node. Raises as `ask`."""
    whole = ask(run_dir, List())
    topics, origins = dict(whole.topics), dict(whole.origins)
    page = whole
    while len(page.topics) == PAGE_TOPICS:
        page = ask(run_dir, List(after=max(page.topics)))
        topics |= page.topics
        origins |= page.origins
    return msgspec.structs.replace(page, topics=topics, origins=origins)


def until_applied(
    run_dir: str, reply: TopicReply, timeout_seconds: float, gone: str = "", *, trusted_uid: int | None = None
) -> TopicReply:
    """Wait until every worker that serves has what `reply` tells of.

    Args:
        gone: a topic that was deleted: wait also until its directory is out of the way.

    Raises:
        WorkerUnavailable: some have not in time; they will.
        NotRunning: the node ended.
    """
    wanted, deadline = reply.version, time.monotonic() + timeout_seconds
    while True:
        late = [name for name, version in reply.applied.items() if version is not None and version < wanted]
        if not late and gone not in [deletion.topic for deletion in reply.deletions]:
            return reply
        if time.monotonic() >= deadline:
            who = f"{', '.join(late)} did not take it up" if late else f"the directory of {gone} is still in its place"
            raise WorkerUnavailable(
                f"the change is durable, but after {timeout_seconds:.0f} s {who}; look at `quiver status`"
            )
        time.sleep(_LOOK_SECONDS)
        reply = ask(run_dir, List(limit=0), trusted_uid=trusted_uid)
