"""The producer's side of a connection inside one process: bundles are laid out in memory of their own, which the worker takes over."""

from __future__ import annotations

import numpy as np

from quiver_actors.client.push_channel import PushChannel, PushGroup
from quiver_actors.embedded.wire import PASSED_BYTES_MAX, ClientEnd


class DirectPushChannel(PushChannel):
    """A channel that passes bundles over as they are, without an arena."""

    has_lone_lane = False

    def try_send(self, group: PushGroup, topic: str) -> bool:
        """Send like the base class; return False where too much is under way that the worker has not taken yet."""
        if group.error is not None:
            raise group.error
        if self._reserved_for not in (None, group):
            return False
        if self._is_overdrawn_by(group):
            self._renew_for(group)
            return False
        end = self._connection
        assert isinstance(end, ClientEnd), "this channel is connected inside of the process"
        passed = end.worker.passed
        if passed.size_bytes and passed.size_bytes + group.size_bytes > PASSED_BYTES_MAX:
            return False
        # Not a bytearray: that would write zeroes over every page first.
        memory = np.empty(group.size_bytes, dtype=np.uint8).data
        rows = group.planned.write(memory, 0)
        self._send_group(group, topic, rows, passed.pass_over(memory), 0)
        return True
