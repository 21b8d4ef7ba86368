"""The states of bundles as plain numbers and bytes, and the patterns by which runs of them are found in a row of such bytes.

An operation on a member of an IntEnum costs three times as much as one on an int, and these are in every step.
"""

from __future__ import annotations

import re

from quiver_actors.store.subscriber.transitions import BundleEvent, BundleState, advance

PENDING = int(BundleState.PENDING)
DEFERRED = int(BundleState.DEFERRED)
EXHAUSTED = int(BundleState.EXHAUSTED)
BLOCKED = int(BundleState.BLOCKED)
ACKED = int(BundleState.ACKED)
CLAIMED = int(advance(BundleState.PENDING, BundleEvent.CLAIM))
AFTER_DUE = int(advance(BundleState.DEFERRED, BundleEvent.DUE))
CLAIMABLE_BY_REFERENCE = frozenset([PENDING, DEFERRED, BLOCKED])

PENDING_BYTE = bytes((PENDING,))
CLAIMED_BYTE = bytes((CLAIMED,))

PENDING_RUN = re.compile(b"%c*" % PENDING)
UNRESOLVED = re.compile(b"[%c-%c]" % (PENDING, ACKED - 1))
