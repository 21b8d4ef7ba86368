"""The parser of every command: a misspelt command or choice is answered with the one that was probably meant."""

from __future__ import annotations

import argparse
import difflib


class CommandParser(argparse.ArgumentParser):
    """An argument parser whose error for a wrong choice suggests the nearest right one."""

    def _check_value(self, action: argparse.Action, value: object) -> None:
        if action.choices is None or value in action.choices:
            return
        choices = [str(choice) for choice in action.choices]
        near = difflib.get_close_matches(str(value), choices, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"expected one of {', '.join(choices)}"
        raise argparse.ArgumentError(action, f"there is no {value!r}; {hint}")
