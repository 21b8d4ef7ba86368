"""Interrupts at a chosen place: the calling thread raises `Interrupt` where a signal handler could, and nowhere else.

The interpreter runs signal handlers when a Python function begins, behind a call, and at the end of each round of a loop. So these places
of the product's code are numbered as they are passed, and a test can raise at each of them in turn.
"""

from __future__ import annotations

import dis
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

_LOOKED_BEHIND = {
    code for name, code in dis.opmap.items() if name.startswith("CALL") or name in ("RESUME", "JUMP_BACKWARD")
}
"""Instructions behind which the interpreter looks for signals."""


class Interrupt(BaseException):
    """Stands for KeyboardInterrupt, and for what a program's own signal handler raises."""


class Interruption:
    """One interrupt, at place number `at` of the product's code, counted from 1.

    Attributes:
        came_at: file, line and function where it came; empty: the call had fewer places.
        passed: places that were passed.
    """

    def __init__(self, at: int) -> None:
        self.came_at = ""
        self._at = at
        self.passed = 0
        self._last: dict[int, int] = {}
        """The last instruction of each frame."""

    def run(self, call: Callable[[], object]) -> None:
        """Call it, interrupted."""
        former = sys.gettrace()
        sys._getframe().f_trace_opcodes = True  # Python 3.12 reports instructions only if a frame has wanted it before
        sys.settrace(self._enter)
        try:
            call()
        except Interrupt:
            pass
        finally:
            sys.settrace(former)

    def _enter(self, frame: FrameType, event: str, argument: object) -> Any:
        if "quiver_actors" not in frame.f_code.co_filename:
            return None
        # Python 3.13 reports instructions only of a frame that has its trace function by then.
        frame.f_trace = self._step
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        self._last.pop(id(frame), None)
        return self._step

    def _step(self, frame: FrameType, event: str, argument: object) -> Any:
        if event == "opcode":
            former = self._last.get(id(frame))
            self._last[id(frame)] = frame.f_code.co_code[frame.f_lasti]
            if former in _LOOKED_BEHIND:
                self._pass(frame)
        return self._step

    def _pass(self, frame: FrameType) -> None:
        self.passed += 1
        if self.passed == self._at:
            code = frame.f_code
            self.came_at = f"{code.co_filename}:{frame.f_lineno} {code.co_name}"
            sys.settrace(None)
            raise Interrupt
