"""`quiver serve`: let other hosts push to a node, subscribe, read its topics and publish what was staged on it, through Arrow Flight."""

from __future__ import annotations

import argparse
import dataclasses
import ipaddress
import os
import signal
import socket
import threading
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from quiver_actors.base.config.tree import ServeSettings
from quiver_actors.cli import run_dir
from quiver_actors.errors import ConfigError, DiskError, NotRunning, UsageError
from quiver_actors.flight.arrow_memory import bound_arrow_memory, default_bytes
from quiver_actors.store.status.node_status import node_status

if TYPE_CHECKING:
    from quiver_actors.base.rights import TokenHolder
    from quiver_actors.flight.members import Member, MemberDirectory

    Subparsers = argparse._SubParsersAction[argparse.ArgumentParser]

_LISTEN = "127.0.0.1:8815"
_SIGNAL_LOOK_SECONDS = 0.2
_DESCRIPTION = """\
Serve the node of a run directory to other hosts, beside its workers, until TERM or INT. Prints one line when it is ready. It listens on
loopback unless --listen says otherwise. An address that others reach needs a token, and TLS or --insecure. The holder of the token of
--token-file (or QUIVER_TOKEN) may do everything; [serve.tokens] of the configuration file names others, each with a role (read, write or
admin) and topics. Without any token everybody who reaches loopback on this host may do everything.
"""

_EPILOG = """\
exit codes:
  0    stopped by a signal; or --leave: it is out of the directory
  1    unexpected error
  2    wrong arguments, or the address is taken
  3    not running
  4    a file of the token or of TLS cannot be read
"""


def add_parser(subparsers: Subparsers) -> None:
    """Add `quiver serve` with its options to the command line."""
    parser = subparsers.add_parser(
        "serve",
        help="serve a node to other hosts (Arrow Flight)",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    run_dir.add_options(parser)
    parser.add_argument(
        "--listen", metavar="HOST:PORT", default=_LISTEN, help=f"default {_LISTEN}; port 0: any free one"
    )
    parser.add_argument(
        "--host",
        metavar="NAME",
        help="what others reach this host by (default: that of --listen, else the host's name)",
    )
    parser.add_argument(
        "--nodes",
        metavar="URI",
        help="directory or prefix of an object store to announce the node in (default: $QUIVER_NODES)",
    )
    parser.add_argument(
        "--leave",
        action="store_true",
        help="take the node out of that directory and end; see also quiver drain --leave",
    )
    parser.add_argument("--node", metavar="NAME", help="with --leave: a node that is not running any more")
    parser.add_argument(
        "--token-file",
        metavar="FILE",
        help="callers must send what it holds; only you or root may read it (default: $QUIVER_TOKEN)",
    )
    parser.add_argument(
        "--insecure", action="store_true", help="serve other hosts without TLS: tokens and rows can be read on the way"
    )
    parser.add_argument("--tls-cert", metavar="FILE", help="certificate chain, PEM")
    parser.add_argument("--tls-key", metavar="FILE", help="its key, PEM")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Serve the node to other hosts until a signal ends it; returns the exit code."""
    settings = _settings(arguments.config)
    bound_arrow_memory(settings.memory_bytes or default_bytes())
    import pyarrow as pa

    from quiver_actors.client import connect
    from quiver_actors.flight.local import LocalNode
    from quiver_actors.flight.server import NodeServer

    host, port = _address(arguments.listen)
    ended = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: ended.set())
    directory = _directory(arguments.nodes or os.environ.get("QUIVER_NODES"))
    if arguments.leave:
        return _leave(arguments, directory)
    holders = _holders(arguments, settings)
    certificate = _certificate(arguments.tls_cert, arguments.tls_key)
    scheme = "grpc" if certificate is None else "grpc+tls"
    _check_reach(arguments, host, has_token=bool(holders), has_tls=certificate is not None)
    with connect(run_dir.find_run_dir(arguments), timeout=60.0) as client:
        node = LocalNode(client.node, lambda: client, partial(_status, client.run_dir), settings)
        try:
            server = NodeServer(node, f"{scheme}://{host}:{port}", holders=holders, tls_certificate=certificate)
        except pa.ArrowException as error:
            raise UsageError(
                f"cannot serve on {arguments.listen}: {error}; is the address this host's and the port free? Name another one with --listen"
            ) from error
        member = _member(client.node, scheme, arguments.host or host, server.port)
        if directory is not None:
            directory.announce(member)
        print(f"quiver serving: node={member.node} location={member.location} run_dir={client.run_dir}", flush=True)
        # Looked at now and then: a signal that another thread takes does not wake this one.
        while not ended.wait(_SIGNAL_LOOK_SECONDS):
            continue
        server.shutdown(ended=None if _is_running(client.run_dir) else client)
    return 0


def _is_running(where: str) -> bool:
    """Whether the node says that it runs: one that was drained or stopped does not."""
    from quiver_actors.client.node_view import NodeDirectory

    try:
        NodeDirectory(where)
    except NotRunning:
        return False
    return True


def _status(where: str) -> dict[str, Any]:
    """How the node is. Raises NotRunning."""
    return node_status(where)


def _leave(arguments: argparse.Namespace, directory: MemberDirectory | None) -> int:
    from quiver_actors.client import connect

    if directory is None:
        raise ConfigError("--leave needs the directory: give --nodes")
    name = arguments.node
    if name is None:
        with connect(run_dir.find_run_dir(arguments)) as client:
            name = client.node
    directory.leave(name)
    return 0


def _address(text: str) -> tuple[str, int]:
    host, colon, port = text.rpartition(":")
    if not colon or not host or not port.isdecimal():
        raise ConfigError(f"--listen {text!r} is not HOST:PORT, such as {_LISTEN}")
    return host, int(port)


def _directory(text: str | None) -> MemberDirectory | None:
    from quiver_actors.flight.members import MemberDirectory, parse_static

    return None if not text or parse_static(text) is not None else MemberDirectory(text)


def _member(node: str, scheme: str, host: str, port: int) -> Member:
    from quiver_actors.flight.members import Member

    reached = socket.gethostname() if host in ("0.0.0.0", "::", "[::]") else host
    return Member(node, f"{scheme}://{reached}:{port}", (reached,))


def _settings(config: str | None) -> ServeSettings:
    from quiver_actors.base.config import load_config

    return load_config(config).serve if config else ServeSettings()


def _holders(arguments: argparse.Namespace, settings: ServeSettings) -> dict[str, TokenHolder]:
    """Return the token holders by token: those of the configuration, and the one holder that may do everything."""
    from quiver_actors.flight.callers import EVERYBODY, holders_of
    from quiver_actors.flight.token_file import read_token

    found = holders_of(settings.tokens)
    path, text = arguments.token_file, os.environ.get("QUIVER_TOKEN")
    if path is not None:
        text = read_token(path)
    if text == "":
        raise ConfigError("QUIVER_TOKEN is empty: put a token into it, or unset it")
    if text is not None:
        if text in found:
            raise ConfigError(
                f"token {found[text].name!r} of the configuration equals the token that may do everything: use another token"
            )
        found[text] = dataclasses.replace(EVERYBODY, name="--token-file" if path else "QUIVER_TOKEN")
    return found


def _check_reach(arguments: argparse.Namespace, host: str, *, has_token: bool, has_tls: bool) -> None:
    """Raises ConfigError: others reach the address, and there is no token, or no TLS although nobody said that there need be none."""
    if _is_loopback(host):
        return
    where = f"--listen {arguments.listen} can be reached from other machines"
    if not has_token:
        raise ConfigError(f"{where}, so it needs a token: give --token-file, or [serve.tokens] in the file of --config")
    if not (has_tls or arguments.insecure):
        raise ConfigError(
            f"{where}, so it needs TLS: give --tls-cert and --tls-key, or --insecure if the network is trusted"
        )


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host.removeprefix("[").removesuffix("]")).is_loopback
    except ValueError:
        return host == "localhost"


def _certificate(chain: str | None, key: str | None) -> tuple[bytes, bytes] | None:
    if (chain is None) != (key is None):
        raise ConfigError("--tls-cert needs --tls-key and the other way round: give both or neither")
    return None if chain is None or key is None else (_read(chain), _read(key))


def _read(path: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise DiskError("read", path, error.errno or 0) from error
