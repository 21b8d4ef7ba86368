"""Refusals that a client keeps to itself while its call has time left: nothing was stored, and the worker will recover or be replaced."""

from __future__ import annotations

import time
from typing import TypeGuard

from quiver_actors.base.units import MILLISECOND_NS
from quiver_actors.errors import (
    Draining,
    EngineFailed,
    HardPressed,
    ProducerUnsettled,
    QuiverError,
    StageUnreadable,
    StorageUnavailable,
)

RETRY_NS = 50 * MILLISECOND_NS
"""The next attempt is at least so far off."""

_RETRIED = (Draining, EngineFailed, HardPressed, ProducerUnsettled, StageUnreadable, StorageUnavailable)


def is_retried(error: QuiverError | None) -> TypeGuard[QuiverError]:
    """Whether another attempt may go better."""
    return isinstance(error, _RETRIED)


def retry_at_ns(refusal: QuiverError) -> int:
    """When to try again (monotonic ns): not before the worker asks for it."""
    return time.monotonic_ns() + max(RETRY_NS, refusal.retry_after_ns)
