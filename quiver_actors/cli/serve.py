"""`quiver serve`: let other hosts read a node's topics and publish what was staged on it, through Arrow Flight."""

from __future__ import annotations

import argparse
import os
import signal
import socket
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING

from quiver_actors.errors import ConfigError, DiskError, UsageError

if TYPE_CHECKING:
    from quiver_actors.flight.members import Member, MemberDirectory

    Subparsers = argparse._SubParsersAction[argparse.ArgumentParser]

_SIGNAL_LOOK_SECONDS = 0.2
_DESCRIPTION = """\
Serve the node of a run directory to other hosts, beside its workers, until TERM or INT. Prints one line when it is ready. Without
--token-file anybody who reaches the port may read all topics: give one wherever the port is not on a loopback address.
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
    parser = subparsers.add_parser(
        "serve",
        help="serve a node to other hosts (Arrow Flight)",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--run-dir", metavar="DIR", help="of the node (default: $QUIVER_RUN_DIR, else the user's)")
    parser.add_argument(
        "--listen", metavar="HOST:PORT", default="0.0.0.0:8815", help="default 0.0.0.0:8815; port 0: any free one"
    )
    parser.add_argument(
        "--host",
        metavar="NAME",
        help="what others reach this host by (default: that of --listen, else the host's name)",
    )
    parser.add_argument("--nodes", metavar="URI", help="directory to announce the node in (default: $QUIVER_NODES)")
    parser.add_argument(
        "--leave",
        action="store_true",
        help="take the node out of that directory and end; see also quiver drain --leave",
    )
    parser.add_argument("--node", metavar="NAME", help="with --leave: a node that is not running any more")
    parser.add_argument("--token-file", metavar="FILE", help="callers must send what it holds (default: $QUIVER_TOKEN)")
    parser.add_argument("--tls-cert", metavar="FILE", help="certificate chain, PEM")
    parser.add_argument("--tls-key", metavar="FILE", help="its key, PEM")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
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
    with connect(arguments.run_dir, timeout=60.0) as client:
        certificate = _certificate(arguments.tls_cert, arguments.tls_key)
        scheme = "grpc" if certificate is None else "grpc+tls"
        node = LocalNode(client.node, lambda: client)
        token = _token(arguments.token_file)
        try:
            server = NodeServer(node, f"{scheme}://{host}:{port}", token=token, tls_certificate=certificate)
        except pa.ArrowException as error:
            raise UsageError(
                f"cannot serve on {arguments.listen}: {error}; is the address this host's and the port free? Name another one with --listen"
            ) from error
        member = _member(client.node, scheme, arguments.host or host, server.port)
        if directory is not None:
            directory.announce(member)
        print(f"quiver serving: node={member.node} location={member.location} run_dir={client.run_dir}", flush=True)
        if token is None and not host.startswith("127."):
            print("quiver: no token: whoever reaches this port may read all topics", file=sys.stderr)
        # Looked at now and then: a signal that another thread takes does not wake this one.
        while not ended.wait(_SIGNAL_LOOK_SECONDS):
            continue
        server.shutdown()
    return 0


def _leave(arguments: argparse.Namespace, directory: MemberDirectory | None) -> int:
    from quiver_actors.client import connect

    if directory is None:
        raise ConfigError("--leave needs the directory: give --nodes")
    name = arguments.node
    if name is None:
        with connect(arguments.run_dir) as client:
            name = client.node
    directory.leave(name)
    return 0


def _address(text: str) -> tuple[str, int]:
    host, colon, port = text.rpartition(":")
    if not colon or not host or not port.isdecimal():
        raise ConfigError(f"--listen {text!r} is not HOST:PORT, such as 0.0.0.0:8815")
    return host, int(port)


def _directory(text: str | None) -> MemberDirectory | None:
    from quiver_actors.flight.members import MemberDirectory, parse_static

    return None if not text or parse_static(text) is not None else MemberDirectory(text)


def _member(node: str, scheme: str, host: str, port: int) -> Member:
    from quiver_actors.flight.members import Member

    reached = socket.gethostname() if host in ("0.0.0.0", "::", "[::]") else host
    return Member(node, f"{scheme}://{reached}:{port}", (reached,))


def _token(path: str | None) -> str | None:
    text = os.environ.get("QUIVER_TOKEN") if path is None else _read(path).decode().strip()
    if text is not None and not text:
        raise ConfigError(f"the token{'' if path is None else f' in {path}'} is empty")
    return text


def _certificate(chain: str | None, key: str | None) -> tuple[bytes, bytes] | None:
    if (chain is None) != (key is None):
        raise ConfigError("--tls-cert and --tls-key belong together: give both or none")
    return None if chain is None or key is None else (_read(chain), _read(key))


def _read(path: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise DiskError("read", path, error.errno or 0) from error
