"""The short form of `python -m tests.million`: everything is read live, in order, across seals, a kill, a compaction and a restart."""

from __future__ import annotations

import pytest

from tests.million import GROUP, TRANSACTION_BUNDLES, TRANSACTION_EVERY, run_million

BUNDLES = 20_000


@pytest.mark.crash
@pytest.mark.timeout(600)
def test_every_bundle_comes_in_order_and_none_again_after_its_durable_acknowledgement() -> None:
    million = run_million(BUNDLES, held=5_000)
    assert million.failures == []
    assert million.figures["published"] == BUNDLES // GROUP // TRANSACTION_EVERY * TRANSACTION_BUNDLES
    assert million.figures["segments_then"] > 5  # type: ignore[operator]
    assert million.figures["compacted"] > 0  # type: ignore[operator]
    assert len(million.anon_kib["held"]) == 1 + 3
