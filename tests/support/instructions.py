"""What a call costs, in a figure that no other process changes."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any


def instructions_of(call: Callable[[], object]) -> int:
    """Bytecode instructions that a call executes."""
    count = 0

    def on_event(frame: FrameType, event: str, argument: Any) -> Any:
        nonlocal count
        frame.f_trace_opcodes = True
        count += event == "opcode"
        return on_event

    previous = sys.gettrace()
    sys._getframe().f_trace_opcodes = True  # Python 3.12 reports instructions only if a frame has wanted it before
    sys.settrace(on_event)
    try:
        call()
    finally:
        sys.settrace(previous)
    return count
