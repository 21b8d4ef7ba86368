"""An object store of this process that speaks S3, as far as Arrow's client and `obstore` do: for what only happens without real files.

Strongly consistent, as S3 is; a PUT replaces what is there unless it has conditions, which hold for one request at a time. Credentials are
not looked at.
"""

from __future__ import annotations

import hashlib
import io
import os
import re
import threading
import time
import urllib.parse
from collections.abc import Iterator
from contextlib import contextmanager
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple
from xml.sax.saxutils import escape

from tests.support.object_servers import s3_environment

_BUCKET = "bucket"
_LOOK_SECONDS = 0.01
"""How often the server looks whether it is to end."""
_NAMES = re.compile(rb"<Key>([^<]+)</Key>")


class _Object(NamedTuple):
    content: bytes
    written_at: float

    @property
    def etag(self) -> str:
        return f'"{hashlib.md5(self.content, usedforsecurity=False).hexdigest()}"'


class ObjectStore:
    """An object store in this process that speaks S3. `uri("a/b")` is a place in its only bucket."""

    def __init__(self) -> None:
        self.objects: dict[str, _Object] = {}
        self.uploads: dict[str, dict[int, bytes]] = {}
        self.lock = threading.Lock()
        self.keeps_conditions = True
        """Whether conditions of puts hold; otherwise they are not looked at, as some stores do."""
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
        self._server.daemon_threads = True
        self._server.store = self  # type: ignore[attr-defined]
        self._thread = threading.Thread(target=self._server.serve_forever, args=(_LOOK_SECONDS,), daemon=True)
        self._thread.start()

    def uri(self, path: str, scheme: str = "s3") -> str:
        query = f"scheme=http&endpoint_override=127.0.0.1:{self._server.server_port}&region=here"
        return f"{scheme}://key:secret@{_BUCKET}/{path}?{query}"

    def url(self, path: str, scheme: str = "s3") -> str:
        """The plain URL of a place, for clients with `environment`."""
        return f"{scheme}://{_BUCKET}/{path}"

    def environment(self) -> dict[str, str]:
        """What clients of plain URLs find in their environment."""
        return s3_environment(self._server.server_port)

    def names(self) -> list[str]:
        """Return the names of the objects, without those that stand for directories."""
        with self.lock:
            return sorted(name for name in self.objects if not name.endswith("/"))

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


@contextmanager
def object_store() -> Iterator[ObjectStore]:
    """A store that clients of this process find, through URIs and plain URLs."""
    store = ObjectStore()
    try:
        with in_environment(store):
            yield store
    finally:
        store.close()


@contextmanager
def in_environment(store: ObjectStore) -> Iterator[None]:
    """Let clients of this process, and processes that are started meanwhile, find the store of plain URLs."""
    before = {name: os.environ.get(name) for name in store.environment()}
    os.environ.update(store.environment())
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    # In one piece: headers and body by themselves would each wait for the client's acknowledgement, 40 ms a request.
    wbufsize = 1 << 16
    disable_nagle_algorithm = True

    def handle_expect_100(self) -> bool:
        """Let the client go on at once, and not after its second of patience."""
        goes_on = super().handle_expect_100()
        self.wfile.flush()
        return goes_on

    def _begin(self) -> tuple[ObjectStore, str, dict[str, str], bytes]:
        parts = urllib.parse.urlsplit(self.path)
        bucket, _, name = urllib.parse.unquote(parts.path).lstrip("/").partition("/")
        if bucket != _BUCKET:
            name = "no such bucket"
        query = dict(urllib.parse.parse_qsl(parts.query, keep_blank_values=True))
        store: ObjectStore = self.server.store  # type: ignore[attr-defined]
        return store, name, query, self._body()

    def _body(self) -> bytes:
        if self.headers.get("Transfer-Encoding", "").lower() == "chunked":
            sent = _chunks(self.rfile)
        else:
            sent = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if "aws-chunked" not in self.headers.get("Content-Encoding", ""):
            return sent
        return _chunks(io.BytesIO(sent))

    def _answer(self, status: int, body: bytes | str = b"", **headers: str) -> None:
        content = body.encode() if isinstance(body, str) else body
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        if "Content_Length" not in headers:
            self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def _missing(self) -> None:
        self._answer(404, "<Error><Code>NoSuchKey</Code><Message>no such object</Message></Error>")

    def do_HEAD(self) -> None:
        store, name, _, _ = self._begin()
        found = store.objects.get(name)
        if not name:
            self._answer(200)
        elif found is None:
            self._missing()
        else:
            self._answer(200, Content_Length=str(len(found.content)), Last_Modified=_http_date(found), ETag=found.etag)

    def do_GET(self) -> None:
        store, name, query, _ = self._begin()
        if not name:
            self._answer(200, _listing(store, query), Content_Type="application/xml")
            return
        found = store.objects.get(name)
        if found is None:
            self._missing()
            return
        asked = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
        if asked is None:
            self._answer(200, found.content, Last_Modified=_http_date(found), ETag=found.etag)
            return
        first, last = int(asked[1]), int(asked[2] or len(found.content) - 1)
        part = found.content[first : last + 1]
        self._answer(206, part, Content_Range=f"bytes {first}-{first + len(part) - 1}/{len(found.content)}")

    def do_PUT(self) -> None:
        store, name, query, body = self._begin()
        source = self.headers.get("x-amz-copy-source")
        etag = '"0"'
        with store.lock:
            if store.keeps_conditions and not self._conditions_hold(store.objects.get(name)):
                self._answer(412, "<Error><Code>PreconditionFailed</Code><Message>it does not hold</Message></Error>")
                return
            if "uploadId" in query:
                store.uploads[query["uploadId"]][int(query["partNumber"])] = body
            elif source is not None:
                copied = store.objects[urllib.parse.unquote(source).lstrip("/").partition("/")[2]]
                store.objects[name] = _Object(copied.content, time.time())
            else:
                store.objects[name] = _Object(body, time.time())
                etag = store.objects[name].etag
        self._answer(200, "<CopyObjectResult/>" if source is not None else "", ETag=etag)

    def _conditions_hold(self, found: _Object | None) -> bool:
        wanted = self.headers.get("If-Match")
        if wanted is not None and (found is None or found.etag != wanted):
            return False
        return self.headers.get("If-None-Match") != "*" or found is None

    def do_POST(self) -> None:
        store, name, query, body = self._begin()
        with store.lock:
            if "delete" in query:
                keys = [key.decode() for key in _NAMES.findall(body)]
                for key in keys:
                    store.objects.pop(key, None)
                deleted = "".join(f"<Deleted><Key>{escape(key)}</Key></Deleted>" for key in keys)
                answer = f"<DeleteResult>{deleted}</DeleteResult>"
            elif "uploads" in query:
                upload = str(len(store.uploads))
                store.uploads[upload] = {}
                answer = f"<InitiateMultipartUploadResult><UploadId>{upload}</UploadId></InitiateMultipartUploadResult>"
            else:
                parts = store.uploads[query["uploadId"]]
                store.objects[name] = _Object(b"".join(parts[number] for number in sorted(parts)), time.time())
                answer = "<CompleteMultipartUploadResult/>"
        self._answer(200, answer, Content_Type="application/xml")

    def do_DELETE(self) -> None:
        store, name, _, _ = self._begin()
        with store.lock:
            store.objects.pop(name, None)
        self._answer(204)

    def log_message(self, format: str, *arguments: object) -> None:
        """Log nothing: a test is not about requests."""


def _chunks(stream: Any) -> bytes:
    """The content of a chunked body, of HTTP or of AWS; trailers are read and left out."""
    content = b""
    while (size := int(stream.readline().partition(b";")[0].strip() or b"0", 16)) > 0:
        content += stream.read(size)
        stream.readline()
    while stream.readline().strip():
        continue
    return content


def _listing(store: ObjectStore, query: dict[str, str]) -> str:
    prefix, delimiter = query.get("prefix", ""), query.get("delimiter", "")
    with store.lock:
        objects = sorted(store.objects.items())
    found, folders = "", dict[str, None]()
    count = 0
    for name, each in objects:
        if not name.startswith(prefix):
            continue
        rest = name[len(prefix) :]
        if delimiter and delimiter in rest:
            folders[prefix + rest.partition(delimiter)[0] + delimiter] = None
            continue
        count += 1
        found += f"<Contents><Key>{escape(name)}</Key><LastModified>{_iso(each)}</LastModified><ETag>{escape(each.etag)}</ETag>"
        found += f"<Size>{len(each.content)}</Size><StorageClass>STANDARD</StorageClass></Contents>"
    found += "".join(f"<CommonPrefixes><Prefix>{escape(each)}</Prefix></CommonPrefixes>" for each in folders)
    head = f"<Name>{_BUCKET}</Name><Prefix>{escape(prefix)}</Prefix><KeyCount>{count + len(folders)}</KeyCount>"
    return f"<ListBucketResult>{head}<MaxKeys>1000</MaxKeys><IsTruncated>false</IsTruncated>{found}</ListBucketResult>"


def _http_date(found: _Object) -> str:
    return formatdate(found.written_at, usegmt=True)


def _iso(found: _Object) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S.000Z", time.gmtime(found.written_at))
