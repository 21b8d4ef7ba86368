"""Where a bundle lies in a log: the form in which a worker says it to subscribers."""

from __future__ import annotations

import struct

PLACE = struct.Struct("<QIq")
"""Offset of the bundle's entry in the file, bytes of the entry with its length field, and items (-1: unknown)."""
PLACES_MAX = 8_192
"""Most places in one message."""
