"""The nodes: a directory in which they announce themselves, or a list that the user gives.

A directory holds `<node>.json` for each node, in an object store (`s3:`, `gs:`, `az:`) or on any file system that Arrow can write (a path,
`file:`, `hdfs:` ...). It lists members, not who is alive: a node that is down stays listed, since what it holds is not gone, and reading
it then fails instead of leaving its rows out. `quiver serve --leave`, after `quiver drain`, takes a node out.
"""

from __future__ import annotations

import re
import time

import msgspec

from quiver_actors.base.file_systems import shown
from quiver_actors.errors import ConfigError
from quiver_actors.flight.member_entries import Entries, entries_at

NODES_VARIABLE = "QUIVER_NODES"
_SUFFIX = ".json"
_STATIC = re.compile(r"^[A-Za-z0-9_.-]{1,64}=grpc(\+tls)?://")


class Member(msgspec.Struct, frozen=True):
    """Entry of one node in the directory of nodes."""

    node: str
    location: str
    """Location of the member's Flight server, a URI."""
    hosts: tuple[str, ...] = ()
    """Names under which Spark may know its host."""
    announced_unix_ns: int = 0


def parse_static(text: str) -> dict[str, Member] | None:
    """Read `node-a=grpc://host:port,node-b=...`; None: the text is a directory.

    Raises:
        ConfigError: it begins like a list, and is none.
    """
    if not _STATIC.match(text.strip()):
        return None
    members = {}
    for entry in text.split(","):
        name, equals, location = entry.strip().partition("=")
        if not equals or not _STATIC.match(entry.strip()) or name in members:
            raise ConfigError(
                f"{entry!r} is not a node of a list such as 'node-a=grpc://host-a:8815,node-b=grpc://host-b:8815'"
            )
        host = location.split("://", 1)[1].rpartition(":")[0]
        members[name] = Member(name, location, (host,))
    return members


class MemberDirectory:
    """The directory at a path or URI. Reads anew each time."""

    def __init__(self, uri: str, *, entries: Entries | None = None) -> None:
        """
        Args:
            entries: what is in it, for tests; None: what is there.

        Raises:
            ConfigError: no file system that Arrow knows.
        """
        self.uri = uri
        self._entries = entries or entries_at(uri)

    def announce(self, member: Member) -> None:
        """Write or replace a node's entry. Raises DiskError, ArchiveError."""
        entry = msgspec.structs.replace(member, announced_unix_ns=time.time_ns())
        self._entries.write(f"{member.node}{_SUFFIX}", msgspec.json.encode(entry))

    def leave(self, node: str) -> None:
        """Take a node out; one that is not in is out.

        Raises:
            DiskError: the entry cannot be removed, or there is no such directory: it is another one's name.
            ArchiveError: the object store does not do it.
        """
        self._entries.remove(f"{node}{_SUFFIX}")

    def members(self) -> dict[str, Member]:
        """All entries by name.

        Raises:
            DiskError, ArchiveError: the directory or an entry cannot be read.
            ConfigError: an entry is not what a node writes.
        """
        found = {}
        try:
            for content in self._entries.contents(_SUFFIX):
                member = msgspec.json.decode(content, type=Member)
                found[member.node] = member
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise ConfigError(f"node directory {shown(self.uri)!r} has an entry that no node wrote: {error}") from error
        return dict(sorted(found.items()))


def members_of(text: str) -> dict[str, Member]:
    """The nodes of a list or a directory. Raises ConfigError, DiskError."""
    static = parse_static(text)
    return MemberDirectory(text).members() if static is None else static
