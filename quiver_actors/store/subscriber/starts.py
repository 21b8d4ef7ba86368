"""The start of a new subscriber: the text of `start`, and the bundles that lie before a moment. Pure."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from quiver_actors.base.model import SEGMENT_BUNDLES_MAX
from quiver_actors.errors import UsageError
from quiver_actors.store.subscriber.progress import SegmentProgress

_EXPECTED = "expected latest, earliest, time:<unix ns> or bundle:<core>/<segment_seq>/<bundle_index>"


class Start(NamedTuple):
    """One of the four kinds; only the fields of its kind count."""

    kind: str
    unix_ns: int = 0
    core: int = 0
    segment_seq: int = 0
    bundle_index: int = 0


def parse_start(text: str) -> Start:
    """
    Raises:
        UsageError: the text is none of the four kinds, or a bundle that no segment can have.
    """
    kind, _, rest = text.partition(":")
    numbers = rest.split("/")
    if kind in ("latest", "earliest") and text == kind:
        return Start(kind)
    if not all(number.isascii() and number.isdigit() and len(number) < 20 for number in numbers):
        raise UsageError(f"start {text!r} is unknown: {_EXPECTED}")
    if kind == "time" and len(numbers) == 1:
        return Start(kind, unix_ns=int(rest))
    if kind == "bundle" and len(numbers) == 3:
        core, segment_seq, bundle_index = map(int, numbers)
        if bundle_index > SEGMENT_BUNDLES_MAX:
            raise UsageError(f"start {text!r}: a segment has at most {SEGMENT_BUNDLES_MAX} bundles")
        return Start(kind, core=core, segment_seq=segment_seq, bundle_index=bundle_index)
    raise UsageError(f"start {text!r} is unknown: {_EXPECTED}")


def resolved_before(ingestion_unix_ns: npt.NDArray[np.int64], start_unix_ns: int) -> SegmentProgress:
    """Progress of a segment whose bundles were ingested at those times, for a subscriber that wants none from before `start_unix_ns`.

    A time of 0 means that it is not known: such a bundle is wanted.
    """
    count = len(ingestion_unix_ns)
    is_before = (ingestion_unix_ns < start_unix_ns) & (ingestion_unix_ns != 0)
    packed = np.packbits(is_before, bitorder="little").tobytes()
    return SegmentProgress(count, packed.ljust(-(-count // 64) * 8, b"\0"))
