"""`quiver metrics`: a node's figures for Prometheus and for a browser."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from quiver_actors.cli import run_dir
from quiver_actors.errors import UsageError

if TYPE_CHECKING:
    Subparsers = argparse._SubParsersAction[argparse.ArgumentParser]

_DESCRIPTION = """\
Serve a node's figures over HTTP: /metrics for Prometheus, / as a page with plots of the last 15 minutes, /status.json, and /live and
/ready for probes. A process of its own beside the node: it reads shared memory alone, so it answers while workers hang, and may be
started before the node. Needs the extra quiver-actors[metrics].
"""

_EPILOG = """\
examples:
  quiver metrics --once
  quiver metrics --listen 127.0.0.1:9465
  quiver metrics --listen unix:/run/quiver/metrics.sock

exit codes:
  0  stopped by a signal; or printed
  1  unexpected error
  2  wrong arguments, the address is taken, or the extra is not installed
"""


def add_parser(subparsers: Subparsers) -> None:
    """Add `quiver metrics` with its options to the command line."""
    parser = subparsers.add_parser(
        "metrics",
        help="serve figures for Prometheus and a status page",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    run_dir.add_options(parser)
    mode = parser.add_mutually_exclusive_group()
    mode.add_argument("--listen", metavar="ADDRESS", default="", help="HOST:PORT or unix:PATH (127.0.0.1:9465)")
    mode.add_argument("--once", action="store_true", help="print the metrics once and exit")
    parser.add_argument(
        "--host",
        metavar="NAME",
        action="append",
        default=[],
        help="a name that requests may call this server by, besides addresses, localhost and this machine's name; may be repeated",
    )
    parser.add_argument("--public", action="store_true", help="allow an address that other machines can reach")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Raises UsageError and ConfigError, see the exit codes."""
    where = run_dir.find_run_dir(arguments)
    try:
        import prometheus_client
    except ModuleNotFoundError as error:
        raise UsageError("metrics need an extra: pip install 'quiver-actors[metrics]'") from error
    if not arguments.once:
        return _serve(where, arguments.listen, arguments.host, public=arguments.public)
    from quiver_actors.cli.web.collector import NodeCollector

    registry = prometheus_client.CollectorRegistry(auto_describe=False)
    registry.register(NodeCollector(where))
    sys.stdout.write(prometheus_client.generate_latest(registry).decode())
    return 0


def _serve(where: str, listen: str, names: list[str], *, public: bool) -> int:
    import signal

    from quiver_actors.cli.web.server import DEFAULT_LISTEN, MetricsServer, parse_address
    from quiver_actors.supervisor.log import configure_logging

    server = MetricsServer(where, parse_address(listen or DEFAULT_LISTEN, public=public), names)
    configure_logging(sys.stderr)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    print(f"serving the figures of {where} on {server.address}", flush=True)
    try:
        server.serve()
    except KeyboardInterrupt:
        return 0
    finally:
        server.release()
    return 0
