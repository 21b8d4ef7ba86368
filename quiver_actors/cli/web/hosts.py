"""The names by which the HTTP server may be called: the check of the Host header. Pure.

A page of another site can have its own name resolve to 127.0.0.1 (DNS rebinding): the browser then takes this server for that site, and
lets the page's scripts read the answers. Such a request still carries the other site's name in its Host header.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Collection, Iterable


def are_own(hosts: Iterable[str], names: Collection[str]) -> bool:
    """Whether all Host headers of a request mean this server: an address, `localhost`, or one of `names` (lower case).

    A request without the header does not come from a browser, and is one of this server.
    """
    return all(_is_own(_without_port(host.strip().lower()), names) for host in hosts)


def _is_own(host: str, names: Collection[str]) -> bool:
    name = host.rstrip(".")
    if name == "localhost" or name.endswith(".localhost") or name in names:
        return True
    try:
        # Nobody can have an address resolve to something else.
        ipaddress.ip_address(host.removeprefix("[").removesuffix("]"))
    except ValueError:
        return False
    return True


def _without_port(host: str) -> str:
    name, colon, port = host.rpartition(":")
    return name if colon and (port.isdecimal() or not port) and not host.endswith("]") else host
