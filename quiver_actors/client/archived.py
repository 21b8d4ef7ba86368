"""Waiting until bundles are in the archive. The archiver says in a file of the run directory what it has; no object store is asked."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from quiver_actors.base.archive_status import ArchivedStream, ArchiveStatus, read_archive_status
from quiver_actors.base.model import BundleId, Receipt
from quiver_actors.base.protocol.messages import ListSegments, SegmentList
from quiver_actors.client.exchange import Exchange, Flow, deadline_after
from quiver_actors.client.requests import Requests
from quiver_actors.errors import QuiverError, UsageError
from quiver_actors.transactions.model import Token

ARCHIVE_TIMEOUT_SECONDS = 60.0
LOOK_SECONDS = 0.02
UNTIL = ("sealed", "archived")


class NotArchived(QuiverError):
    """The bundles are durable on this node and not in the archive yet, or never will be. The message says which and why."""

    code = "not_archived"
    retriable = True


class Wanted(NamedTuple):
    """The bundles of one topic and core that are to be archived."""

    topic: str
    core: int
    incarnation: str
    """Incarnation of the core's directory."""
    places: tuple[tuple[int, int, int], ...] = ()
    """Runs of bundles in the order of their segments: segment, first bundle, the one behind the last."""
    through: int = -1
    """Everything up to this segment is to be archived, or known never to be."""
    stages: tuple[int, ...] = ()
    """Numbers of prepared stages."""


def check_until(until: str) -> bool:
    """Whether a flush is to wait for the archive. Raises UsageError."""
    if until not in UNTIL:
        raise UsageError(f"until {until!r} is not possible: expected one of {', '.join(UNTIL)}")
    return until == "archived"


def wanted_of(receipts: Iterable[Receipt | BundleId], incarnations: Mapping[int, str]) -> list[Wanted]:
    """What receipts, or bundle ids, of one topic ask for."""
    found: dict[tuple[str, int], set[tuple[int, int, int]]] = {}
    for each in receipts:
        topic, core, segment_seq, index = each.bundle_id if isinstance(each, Receipt) else each
        found.setdefault((topic, core), set()).add((segment_seq, index, index + 1))
    return [
        Wanted(topic, core, incarnations.get(core, ""), tuple(sorted(places)))
        for (topic, core), places in found.items()
    ]


def stages_of(tokens: Iterable[Token]) -> list[Wanted]:
    """What tokens of prepared stages ask for."""
    return [Wanted(each.topic, each.core, each.incarnation, stages=(each.number,)) for each in tokens]


def topics_of(receipts: Iterable[Receipt | BundleId]) -> set[str]:
    """The topics that receipts, or bundle ids, are of."""
    return {(each.bundle_id if isinstance(each, Receipt) else each).topic for each in receipts}


def is_archived(status: ArchiveStatus | None, wanted: Wanted) -> bool:
    """Whether all that is wanted of a topic and core is in the archive.

    Raises:
        NotArchived: some of it never will be, or nobody can tell any more.
    """
    stream = _stream_of(status, wanted)
    if stream is None:
        return False
    last = wanted.places[-1][0] if wanted.places else -1
    if max(wanted.through, last) > stream.archived_through:
        return False
    if not {*wanted.stages} <= {*stream.stages}:
        return False
    return all(_has(stream, wanted, *place) for place in wanted.places)


def _stream_of(status: ArchiveStatus | None, wanted: Wanted) -> ArchivedStream | None:
    key = (wanted.topic, wanted.core, wanted.incarnation)
    streams = () if status is None else status.streams
    return next((each for each in streams if (each.topic, each.core, each.incarnation) == key), None)


def _has(stream: ArchivedStream, wanted: Wanted, segment_seq: int, first: int, stop: int) -> bool:
    named = f"bundle {first}" if stop == first + 1 else f"one of the bundles {first} to {stop - 1}"
    what = f"{named} of segment {segment_seq} of topic {wanted.topic!r}, core {wanted.core},"
    if reason := stream.hole(segment_seq, first, stop):
        raise NotArchived(f"{what} is not archived and never will be: it was {reason}")
    if stream.is_archived(segment_seq):
        return True
    if segment_seq < stream.known_from:
        raise NotArchived(f"{what} is older than what the archiver can tell of: look with `quiver archive ls`")
    raise NotArchived(f"{what} is not archived and never will be: it was gone before the archiver came to it")


def await_archived(run_dir: str, wanted: Iterable[Wanted], timeout_seconds: float) -> None:
    """Wait until all that is wanted is in the archive. Raises as `looking`."""
    for _ in looking(run_dir, wanted, timeout_seconds):
        time.sleep(LOOK_SECONDS)


def looking(run_dir: str, wanted: Iterable[Wanted], timeout_seconds: float) -> Iterator[None]:
    """Look at each step whether all that is wanted is in the archive; ends when it is. Whoever takes the steps waits between them.

    Raises:
        NotArchived: it is not after the time, or never will be. UsageError: the timeout is no number.
    """
    deadline_ns = deadline_after(timeout_seconds)
    left = list(wanted)
    while True:
        status = read_archive_status(run_dir)
        left = [each for each in left if not is_archived(status, each)]
        if not left:
            return
        if time.monotonic_ns() >= deadline_ns:
            raise NotArchived(not_archived_text(status, left[0], timeout_seconds))
        yield


def not_archived_text(status: ArchiveStatus | None, wanted: Wanted, timeout_seconds: float) -> str:
    """The message for a time that is over: where the bundles are, and why they are not in the archive."""
    what = f"topic {wanted.topic!r}, core {wanted.core}: durable here, not archived after {timeout_seconds:g} s"
    if status is None:
        return f"{what}: this node has no archiver, or it has not begun yet (archive.url)"
    if status.error:
        return f"{what}: the archiver is {status.state}: {status.error}"
    if not any(each.topic == wanted.topic for each in status.streams):
        return f"{what}: the topic is not archived (archive.enabled)"
    if wanted.stages:
        return (
            f"{what}: the archiver has not uploaded stage {wanted.stages[0]} yet, or the stage is not prepared any more"
        )
    return f"{what}: the archiver is behind by {status.lag_segments} segments; the bundles may not be sealed yet"


def incarnations_of(requests: Requests, topic: str) -> Flow[dict[int, str]]:
    """Return the incarnation of a topic's directory by core; empty where the worker does not say."""
    calls = yield from requests.ask_all(lambda tag: ListSegments(tag, topic))
    return {core: call.answer.incarnation for core, call in calls.items() if isinstance(call.answer, SegmentList)}


def flushed_through(requests: Requests, topic: str) -> Flow[list[Wanted]]:
    """Seal what is open on all workers; what is sealed then is wanted in the archive."""
    yield from requests.flush(topic)
    segments = yield from requests.segments(topic)
    incarnations = yield from incarnations_of(requests, topic)
    return [
        Wanted(topic, core, incarnations.get(core, ""), through=infos[-1].segment_seq)
        for core, infos in segments.items()
        if infos
    ]


class ArchiveWaiting:
    """Methods of `Client` that wait for the archive."""

    _exchange: Exchange
    _requests: Requests

    @property
    def run_dir(self) -> str:
        """Path of the node's run directory."""
        raise NotImplementedError

    def wait_archived(
        self, receipts: Iterable[Receipt | BundleId | Token], timeout: float = ARCHIVE_TIMEOUT_SECONDS
    ) -> None:
        """Wait until the bundles of these receipts are in the archive: uploaded, and recorded in its manifest.

        Args:
            receipts: also bundle ids, and tokens of stages that are prepared and not published: `quiver restore` prepares those again.

        Raises:
            NotArchived: they are not after `timeout` seconds, or never will be, for example because they were evicted before.
            UnknownTopic, WorkerUnavailable: see `quiver_actors.errors`.
        """
        asked = list(receipts)
        wanted = stages_of(each for each in asked if isinstance(each, Token))
        stored = [each for each in asked if not isinstance(each, Token)]
        for topic in topics_of(stored):
            incarnations = self._exchange.run(incarnations_of(self._requests, topic))
            wanted += [each for each in wanted_of(stored, incarnations) if each.topic == topic]
        self._await_archived(wanted, timeout)

    def _await_archived(self, wanted: list[Wanted], timeout_seconds: float) -> None:
        await_archived(self.run_dir, wanted, timeout_seconds)
