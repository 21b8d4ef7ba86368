"""Topics whose directories could not be opened, and when each is tried again: later each time.

Owner: the loop thread. Pure: time is passed in, whoever opens topics asks `due` and says what came of it.
"""

from __future__ import annotations

from collections.abc import Mapping

from quiver_actors.base.config import TopicSettings
from quiver_actors.base.units import SECOND_NS
from quiver_actors.errors import AlreadyRunning, DiskError, QuiverError

RETRY_NS_FIRST = SECOND_NS // 4
RETRY_NS_MAX = 5 * SECOND_NS


def may_pass(error: QuiverError) -> bool:
    """Whether the same directory may be opened later as it is: the disk or another process kept it from being opened, not its contents."""
    return isinstance(error, DiskError | AlreadyRunning)


class Unopened:
    """Topics whose directories could not be opened, and when each is tried again.

    Attributes:
        settings: of these topics.
        reasons: why they could not be opened the last time.
    """

    def __init__(self) -> None:
        self.settings: dict[str, TopicSettings] = {}
        self.reasons: dict[str, str] = {}
        self._wait_ns: dict[str, int] = {}
        self._at_ns: dict[str, int] = {}

    def __bool__(self) -> bool:
        return bool(self.settings)

    def __contains__(self, topic: str) -> bool:
        return topic in self.settings

    def failed(self, topic: str, settings: TopicSettings, reason: str, now_ns: int) -> int:
        """A topic could not be opened. Returns for how long it is left alone."""
        wait_ns = min(2 * self._wait_ns.get(topic, RETRY_NS_FIRST // 2), RETRY_NS_MAX)
        self.settings[topic], self.reasons[topic] = settings, reason
        self._wait_ns[topic], self._at_ns[topic] = wait_ns, now_ns + wait_ns
        return wait_ns

    def due(self, now_ns: int) -> Mapping[str, TopicSettings]:
        """Topics that are to be tried now."""
        return {topic: settings for topic, settings in self.settings.items() if self._at_ns[topic] <= now_ns}

    def forget(self, topic: str) -> None:
        """Forget a topic that is open by now, or is no topic any more."""
        for known in (self.settings, self.reasons, self._wait_ns, self._at_ns):
            known.pop(topic, None)
