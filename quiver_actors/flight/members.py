"""The nodes: a directory in which they announce themselves, or a list that the user gives.

A directory holds `<node>.json` for each node, on any file system that Arrow can write (a path, `file:`, `s3:`, `hdfs:` ...). It lists
members, not who is alive: a node that is down stays listed, since what it holds is not gone, and reading it then fails instead of leaving
its rows out. `quiver serve --leave`, after `quiver drain`, takes a node out.
"""

from __future__ import annotations

import errno
import os
import re
import time

import msgspec
from pyarrow import fs

from quiver_actors.base.file_systems import open_uri
from quiver_actors.errors import ConfigError, DiskError

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

    def __init__(self, uri: str) -> None:
        """
        Raises:
            ConfigError: no file system that Arrow knows.
        """
        self.uri = uri
        try:
            if "://" in uri or uri.startswith("file:"):
                self._files, self._path = open_uri(uri)
            else:
                self._files, self._path = fs.LocalFileSystem(), os.path.abspath(uri)
        except OSError as error:
            raise ConfigError(f"node directory {uri!r} cannot be used: {error}") from error

    def announce(self, member: Member) -> None:
        """Write or replace a node's entry. Raises DiskError."""
        path = f"{self._path}/{member.node}{_SUFFIX}"
        temporary = f"{self._path}/.{member.node}.{os.getpid()}.tmp"
        entry = msgspec.structs.replace(member, announced_unix_ns=time.time_ns())
        try:
            self._files.create_dir(self._path, recursive=True)
            # Written aside and moved, so that nobody reads half of it.
            with self._files.open_output_stream(temporary) as file:
                file.write(msgspec.json.encode(entry))
            self._files.move(temporary, path)
        except OSError as error:
            raise DiskError("announce", path, error.errno or 0, str(error)) from error

    def leave(self, node: str) -> None:
        """Take a node out; one that is not in is out. Raises DiskError, also where there is no such directory: it is another one's name."""
        path = f"{self._path}/{node}{_SUFFIX}"
        try:
            if self._files.get_file_info(path).type is not fs.FileType.NotFound:
                self._files.delete_file(path)
            elif self._files.get_file_info(self._path).type is not fs.FileType.Directory:
                raise FileNotFoundError(errno.ENOENT, "there is no such directory of nodes")
        except OSError as error:
            raise DiskError("leave", path, error.errno or 0, str(error)) from error

    def members(self) -> dict[str, Member]:
        """All entries by name.

        Raises:
            DiskError: the directory or an entry cannot be read.
            ConfigError: an entry is not what a node writes.
        """
        found = {}
        try:
            for info in self._files.get_file_info(fs.FileSelector(self._path, allow_not_found=True)):
                if info.is_file and info.base_name.endswith(_SUFFIX) and not info.base_name.startswith((".", "_")):
                    try:
                        with self._files.open_input_file(info.path) as file:
                            member = msgspec.json.decode(file.read(), type=Member)
                    except FileNotFoundError:
                        continue  # it left since it was listed
                    found[member.node] = member
        except OSError as error:
            raise DiskError("read", self.uri, error.errno or 0, str(error)) from error
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise ConfigError(f"node directory {self.uri!r} has an entry that no node wrote: {error}") from error
        return dict(sorted(found.items()))


def members_of(text: str) -> dict[str, Member]:
    """The nodes of a list or a directory. Raises ConfigError, DiskError."""
    static = parse_static(text)
    return MemberDirectory(text).members() if static is None else static
