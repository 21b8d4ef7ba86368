"""The arena of one connection: the spans of its pushes, and the ring credit that goes back to their producer.

Owner: the session. Ring credit goes back strictly in push order: a span is released once it and every span before it has been copied.
"""

from __future__ import annotations

import contextlib
from collections import deque
from dataclasses import dataclass
from typing import Protocol

from quiver_actors.base.protocol.messages import Push
from quiver_actors.errors import ProtocolError
from quiver_actors.node.worker.access import Guest
from quiver_actors.shm.arena import ArenaOwner
from quiver_actors.shm.errors import ShmError


@dataclass(slots=True)
class HeldSpan:
    """A span whose ring credit cannot go back yet."""

    end_position: int
    is_copied: bool = False


class Spans(Protocol):
    """The memory that the pushes of one connection refer to.

    Attributes:
        held: spans that are still needed by pushes that wait, in push order.
    """

    held: deque[HeldSpan]

    @property
    def size_bytes(self) -> int:
        """Size of the memory that producer and worker share."""

    @property
    def used_bytes(self) -> int:
        """Bytes of it that pushes use now."""

    def expect(self, size_bytes: int) -> None:
        """The memory is about to be made or replaced. Raises ProtocolError, QuotaExceeded: it will not do."""

    def give_up(self) -> None:
        """The new memory could not be made; the present one stays."""

    def attach(self, memory: ArenaOwner) -> None:
        """Take ownership of the memory; the one before goes."""

    def close(self) -> None:
        """Let go of the memory, as the connection is over."""

    def span(self, push: Push) -> memoryview:
        """The bytes of a push. Raises ProtocolError: it has none there."""

    def lone_span(self, offset: int, length: int, end_position: int) -> memoryview | None:
        """The bytes of a lone push; None: it has to go the general way."""

    def release_lone(self, end_position: int) -> None:
        """The span of a lone push is not needed any more."""

    def hold(self, push: Push) -> HeldSpan:
        """The push waits: its span must stay."""

    def release(self, push: Push) -> None:
        """The span of a push that did not wait is not needed any more. Raises ProtocolError: its position makes no sense."""

    def release_held(self, held: HeldSpan) -> None:
        """The span of a push that waited is not needed any more. Raises ProtocolError: its position makes no sense."""

    def release_refused(self, held: HeldSpan) -> None:
        """The push of a held span is refused."""


class SessionArena:
    """The arena of one connection, and which of its spans are still needed.

    Attributes:
        memory: the shared memory; None: the connection has none.
        held: spans whose ring credit cannot go back yet, in push order.
    """

    __slots__ = ("_guest", "_is_coming", "held", "memory")

    def __init__(self, guest: Guest | None) -> None:
        """
        Args:
            guest: the connection's user, who is charged for the memory; None: the user is trusted.
        """
        self.memory: ArenaOwner | None = None
        self.held: deque[HeldSpan] = deque()
        self._guest = guest
        self._is_coming = False

    @property
    def size_bytes(self) -> int:
        """Size of the arena; 0: there is none."""
        return self.memory.size_bytes if self.memory is not None else 0

    @property
    def used_bytes(self) -> int:
        """Bytes of the arena that pushes use now."""
        return self.memory.used_bytes() if self.memory is not None else 0

    # --- the memory ------------------------------------------------------------------------------------------------------

    def expect(self, size_bytes: int) -> None:
        """The arena is about to be made or replaced.

        Raises:
            ProtocolError: spans of the present one are still needed, or one is being made.
            QuotaExceeded: the peer's user has too much already.
        """
        if self.held or self._is_coming:
            raise ProtocolError("AttachArena while pushes or another AttachArena of this connection wait")
        if self._guest is not None:
            self._guest.want_arena(size_bytes)
        self._is_coming = True

    def give_up(self) -> None:
        """The new one could not be made; the present one stays."""
        self._is_coming = False
        if self._guest is not None:
            self._guest.has_arena(self.memory.size_bytes if self.memory is not None else 0)

    def attach(self, memory: ArenaOwner) -> None:
        """Takes ownership of the memory; the one before goes."""
        self._drop()
        self.memory = memory
        self._is_coming = False
        if self._guest is not None:
            self._guest.has_arena(memory.size_bytes)

    def close(self) -> None:
        """The connection is over. Spans that are released later give no credit back."""
        self.held.clear()
        self._drop()

    def _drop(self) -> None:
        """Drop the memory. Another user may keep its mapping: memory no longer counted for the user must not stay allocated."""
        memory, self.memory = self.memory, None
        if memory is not None:
            if self._guest is None:
                memory.close()
            else:
                memory.discard()

    # --- spans of pushes -------------------------------------------------------------------------------------------------

    def span(self, push: Push) -> memoryview:
        """The arena's bytes of a push: shared with the producer, to be copied before anything is checked.

        Raises:
            ProtocolError: no arena, or the span is not inside it.
        """
        if self.memory is None or self._is_coming:
            raise ProtocolError("Push before ArenaAttached")
        try:
            return self.memory.span(push.offset, push.length)
        except ShmError as error:
            raise ProtocolError(f"push {push.tag}: {error}") from error

    def lone_span(self, offset: int, length: int, end_position: int) -> memoryview | None:
        """The bytes of a lone push, as `span`; None: `span` or `release` would refuse it, or spans before it are still needed."""
        memory = self.memory
        if memory is None or self._is_coming or self.held:
            return None
        return memory.next_span(offset, length, end_position)

    def release_lone(self, end_position: int) -> None:
        """The span that `lone_span` has returned has been copied."""
        if self.memory is not None:
            self.memory.publish_released(end_position)

    def hold(self, push: Push) -> HeldSpan:
        """The push waits: its span, and the credit of all that come after it, must stay."""
        held = HeldSpan(push.end_position)
        self.held.append(held)
        return held

    def release(self, push: Push) -> None:
        """The span of a push that did not wait has been copied, or is not needed.

        Raises:
            ProtocolError: the position is not one that the producer has reached.
        """
        if self.held:
            self.held.append(HeldSpan(push.end_position, is_copied=True))
        else:
            self._publish(push.end_position)

    def release_held(self, held: HeldSpan) -> None:
        """The span of a push that waited has been copied, or is not needed.

        Raises:
            ProtocolError: the position is not one that the producer has reached.
        """
        held.is_copied = True
        end_position = -1
        while self.held and self.held[0].is_copied:
            end_position = self.held.popleft().end_position
        if end_position >= 0:
            self._publish(end_position)

    def release_refused(self, held: HeldSpan) -> None:
        """The push of a held span is refused. A position that makes no sense costs its producer credit, and nobody else anything."""
        with contextlib.suppress(ProtocolError):
            self.release_held(held)

    def _publish(self, end_position: int) -> None:
        if self.memory is None:
            return
        try:
            self.memory.publish_released(end_position)
        except ShmError as error:
            raise ProtocolError(f"push ends at ring position {end_position}: {error}") from error
