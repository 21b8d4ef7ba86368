"""What readers without a claim wait for in one engine.

Owner: the engine's host, on the loop thread.
"""

from __future__ import annotations

from quiver_actors.errors import QuiverError
from quiver_actors.node.worker.cold_answers import ColdAnswers
from quiver_actors.node.worker.segment_lists import SegmentLists
from quiver_actors.store.engine import Engine


class Readers:
    """Readers of one engine.

    Attributes:
        lists: answers which segments there are, once all that was acknowledged can be read.
        files: answers with the files of segments, those on the cold disk when they are open.
    """

    def __init__(self, engine: Engine) -> None:
        self.lists = SegmentLists(engine)
        self.files = ColdAnswers(engine)

    def give_up(self, reason: QuiverError) -> None:
        """Refuse everything that waits: the topic is deleted."""
        self.lists.give_up(reason)
        self.files.give_up(reason)
