"""The last 15 minutes of a node, as rates and levels, for the small plots of the status page.

Owner: `Sampler`'s one thread; readers get a copy. A rate is the change between two samples; a worker that began anew counts from 0.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence

import msgspec

from quiver_actors.cli.web.place_history import (
    SubscriberSample,
    TopicSample,
    subscriber_samples,
    topic_samples,
)
from quiver_actors.errors import QuiverError
from quiver_actors.shm.errors import ShmError
from quiver_actors.store.status.status_document import EngineView, StatusView, SubscriberView

SAMPLE_INTERVAL_SECONDS = 5.0
SAMPLES_MAX = 180
"""15 minutes."""
_KEPT_EVERY = 3
"""Number of samples between two writes of the history: so many may be lost when the process is killed."""


class Sample(msgspec.Struct, frozen=True, kw_only=True):
    """Sample of the node's figures; rates are per second since the sample before."""

    unix_ns: int
    running: bool
    bundles_in_per_second: float = 0.0
    bytes_in_per_second: float = 0.0
    delivered_per_second: float = 0.0
    refused_per_second: float = 0.0
    lag_bundles: int = 0
    disk_bytes: int = 0
    sync_seconds: float = 0.0
    """The slowest of the cores' last syncs."""
    cpu_fraction: float = 0.0
    """CPU use of all workers together, as a fraction of one core."""
    pressure: float = 0.0
    """Pressure of the worker that is hardest pressed, 0 to 1."""
    topics: dict[str, TopicSample] = {}
    subscribers: dict[str, SubscriberSample] = {}
    """Samples of subscribers, under `place_history.subscriber_key`."""


_OF_PLACES = frozenset(["topics", "subscribers"])


def node_series(samples: Iterable[Sample]) -> list[dict[str, object]]:
    """The samples without what they keep of topics and subscribers."""
    fields = [field for field in Sample.__struct_fields__ if field not in _OF_PLACES]
    return [{field: getattr(sample, field) for field in fields} for sample in samples]


class History:
    """Turns status documents into samples. Pure but for what it keeps."""

    def __init__(self, samples: Iterable[Sample] = ()) -> None:
        """`samples`: those of an earlier process, oldest first."""
        self._samples: deque[Sample] = deque(samples, maxlen=SAMPLES_MAX)
        self._before: StatusView | None = None

    def samples(self) -> list[Sample]:
        """The samples that are kept, oldest first."""
        return list(self._samples)

    def add(self, status: StatusView) -> None:
        """Take the document of one moment."""
        self._samples.append(_sample(status, self._before))
        self._before = status

    def add_absence(self, unix_ns: int) -> None:
        """Add a sample that says that no node was running."""
        self._samples.append(Sample(unix_ns=unix_ns, running=False))
        self._before = None


def _sample(now: StatusView, before: StatusView | None) -> Sample:
    elapsed = (now.taken_unix_ns - before.taken_unix_ns) * 1e-9 if before else 0.0

    def rate(total: Callable[[StatusView], dict[tuple[object, ...], int]]) -> float:
        if before is None or elapsed <= 0:
            return 0.0
        former = total(before)
        grown = (value - former.get(key, 0) for key, value in total(now).items())
        return sum(value for value in grown if value > 0) / elapsed

    return Sample(
        unix_ns=now.taken_unix_ns,
        running=now.node.running,
        bundles_in_per_second=rate(lambda status: _of_engines(status, "bundles_in")),
        bytes_in_per_second=rate(lambda status: _of_engines(status, "bytes_in")),
        refused_per_second=rate(lambda status: _of_engines(status, "refused")),
        delivered_per_second=rate(_delivered),
        lag_bundles=sum(each.lag_bundles for each in now.subscribers),
        disk_bytes=sum(engine.disk_bytes for engine in now.engines),
        sync_seconds=max((engine.sync_ns_last for engine in now.engines), default=0) * 1e-9,
        cpu_fraction=rate(lambda status: {(each.core, each.pid): each.cpu_ns for each in status.workers}) * 1e-9,
        pressure=max((core.pressure for core in now.cores), default=0.0),
        topics=topic_samples(now, before),
        subscribers=subscriber_samples(now, before),
    )


def _of_engines(status: StatusView, field: str) -> dict[tuple[object, ...], int]:
    return {_engine_key(engine): getattr(engine, field) for engine in status.engines}


def _engine_key(engine: EngineView) -> tuple[object, ...]:
    return engine.topic, engine.core


def _delivered(status: StatusView) -> dict[tuple[object, ...], int]:
    return {_subscriber_key(each): each.delivered for each in status.subscribers}


def _subscriber_key(each: SubscriberView) -> tuple[object, ...]:
    return each.topic, each.subscriber, each.core


class Sampler:
    """Looks at the node again and again, in a thread of its own that ends with `close`."""

    def __init__(
        self,
        take: Callable[[], StatusView],
        interval_seconds: float = SAMPLE_INTERVAL_SECONDS,
        *,
        before: Iterable[Sample] = (),
        keep: Callable[[Sequence[Sample]], None] = lambda _: None,
    ) -> None:
        """
        Args:
            before: samples of an earlier process, oldest first.
            keep: takes all samples now and then, and at the end, so that a later process can go on with them.
        """
        self._take = take
        self._interval_seconds = interval_seconds
        self._history = History(before)
        self._keep = keep
        self._lock = threading.Lock()
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="history", daemon=True)

    def start(self) -> None:
        """Start the thread that takes samples."""
        self._thread.start()

    def close(self) -> None:
        """End the thread, after the sample that it is taking. Idempotent."""
        self._closing.set()
        if self._thread.is_alive():
            self._thread.join()

    def samples(self) -> list[Sample]:
        """Return a copy of all kept samples, oldest first."""
        with self._lock:
            return self._history.samples()

    def _run(self) -> None:
        for number in itertools.count(1):
            self._sample()
            is_last = self._closing.wait(self._interval_seconds)
            if is_last or number % _KEPT_EVERY == 0:
                self._keep(self.samples())
            if is_last:
                return

    def _sample(self) -> None:
        try:
            status = self._take()
        except (QuiverError, ShmError):
            with self._lock:
                self._history.add_absence(time.time_ns())
            return
        with self._lock:
            self._history.add(status)
