"""Finds the node that a command is about: the two options that all commands share, and the run directory that follows from them."""

from __future__ import annotations

import argparse
import os
import socket
from typing import TYPE_CHECKING, Any

from quiver_actors.base.default_run_dir import default_run_dir
from quiver_actors.errors import AlreadyRunning, NotRunning, UsageError
from quiver_actors.store.files.data_version import VERSION_FILE
from quiver_actors.supervisor import control

if TYPE_CHECKING:
    from quiver_actors.client import Client
    from quiver_actors.embedded import Store


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options `--run-dir` and `--config` to a command that looks for a running node."""
    parser.add_argument("--run-dir", metavar="DIR", help="the node's run directory (default: as `quiver up`)")
    parser.add_argument("--config", metavar="FILE", help="take the run directory from this file")


def add_data_dir(parser: argparse.ArgumentParser) -> None:
    """Add the option `--data-dir` to a command that works without a node, too."""
    parser.add_argument("--data-dir", metavar="DIR", help="open this data directory, which no node has open, instead")


def open_data_dir(path: str, **options: Any) -> Store:
    """Open a data directory for a command. `options` are those of `quiver_actors.open`.

    Raises:
        AlreadyRunning: a node or a program has it open.
        UsageError: it is no data directory.
    """
    if not os.path.exists(os.path.join(path, VERSION_FILE)):
        raise UsageError(
            f"{path} is no data directory: it has no file {VERSION_FILE}; name one that a node or a program has written"
        )
    from quiver_actors.embedded import open as open_store

    try:
        return open_store(path, **options)
    except AlreadyRunning as error:
        raise AlreadyRunning(
            f"{error}. If that is a node, ask it: without --data-dir, and with its --run-dir"
        ) from error


def find_run_dir(arguments: argparse.Namespace) -> str:
    """The absolute run directory. Raises ConfigError: the file cannot be read."""
    return os.path.abspath(arguments.run_dir or _configured(arguments.config))


def connect_to_node(arguments: argparse.Namespace, **options: Any) -> Client:
    """A client of the node that a command is about. `options` are those of `quiver_actors.client.connect`.

    Raises:
        NotRunning: there is none, or its supervisor is dead: a command does not wait for another one, as programs do.
        AlreadyRunning, UsageError: as `open_data_dir`, where the command names a data directory.
    """
    if getattr(arguments, "data_dir", None) is not None:
        return open_data_dir(arguments.data_dir, **options)
    from quiver_actors.client import connect

    where = find_run_dir(arguments)
    client = connect(where, **options)
    try:
        _check_supervisor(where)
    except NotRunning:
        client.close()
        raise
    return client


def _check_supervisor(where: str) -> None:
    """Whether somebody listens on the supervisor's socket: it needs no right to look at anything else."""
    path = os.path.join(where, control.SOCKET_NAME)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK) as probe:
        try:
            probe.connect(path)
        except (BlockingIOError, FileNotFoundError):
            return  # It has more callers than it takes at once, or is just being started.
        except ConnectionRefusedError as error:
            raise NotRunning(
                f"the supervisor of {where} is dead ({path}: {error.strerror}), and its workers with it; start the node again with "
                f"`quiver up --run-dir {where}`"
            ) from error


def _configured(config_path: str | None) -> str:
    if config_path is None:
        return default_run_dir()
    from quiver_actors.base.config import load_config

    return load_config(config_path).resolved_run_dir()
