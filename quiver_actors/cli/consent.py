"""The two options of every command that destroys something: one of them has to be there."""

from __future__ import annotations

import argparse


def add_consent(parser: argparse.ArgumentParser) -> None:
    """Add the options `--dry-run` and `--yes`, one of which must be given, to a command that destroys something."""
    mode = parser.add_mutually_exclusive_group(required=True)
    mode.add_argument("--dry-run", action="store_true", help="say what would be lost, change nothing")
    mode.add_argument("--yes", action="store_true", help="do it")
