"""Which node a command is about: the two options that all commands share, and what they come to."""

from __future__ import annotations

import argparse
import os

from quiver_actors.default_run_dir import default_run_dir


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--run-dir", metavar="DIR", help="the node's run directory (default: as `quiver up`)")
    parser.add_argument("--config", metavar="FILE", help="take the run directory from this file")


def find_run_dir(arguments: argparse.Namespace) -> str:
    """The absolute run directory. Raises ConfigError: the file cannot be read."""
    return os.path.abspath(arguments.run_dir or _configured(arguments.config))


def _configured(config_path: str | None) -> str:
    if config_path is None:
        return default_run_dir()
    from quiver_actors.config import load_config

    return load_config(config_path).resolved_run_dir()
