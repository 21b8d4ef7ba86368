"""The policies of a topic whose size cap is reached. docs/retention.md says what each does."""

from __future__ import annotations

BACKPRESSURE, REJECT, DROP_OLDEST = "backpressure", "reject", "drop_oldest"


POLICIES = (BACKPRESSURE, REJECT, DROP_OLDEST)
