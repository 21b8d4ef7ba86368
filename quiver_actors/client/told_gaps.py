"""Gap notices that a batch in the making has taken: they are told by then, and come again where nobody is handed them."""

from __future__ import annotations

from collections.abc import Sequence

from quiver_actors.client.gaps import GapNotice, WaitingGap
from quiver_actors.client.grants import Portion


class ToldGaps:
    """The last notice of one iterator over batches: what follows it is not taken before it is handed over.

    Attributes:
        last: None: there was none.
    """

    def __init__(self) -> None:
        self.last: WaitingGap | None = None

    def with_gaps(self, left: Sequence[Portion | GapNotice]) -> list[Portion | WaitingGap]:
        """Return bundles and notices in the form in which the inbox takes them back."""
        found = [self.last if isinstance(item, GapNotice) else item for item in left]
        return [item for item in found if item is not None]
