"""The base class of all messages. See `base.protocol.messages`."""

from __future__ import annotations

import msgspec


class Message(msgspec.Struct, array_like=True, frozen=True):
    """Root of all messages."""
