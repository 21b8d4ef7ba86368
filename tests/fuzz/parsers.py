"""Every parser that reads what a disk or a peer hands over, as a function of bytes that may raise only errors of ours."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from quiver_actors.base.protocol.framing import FrameReader, decode_client_message, decode_worker_message
from quiver_actors.base.protocol.messages import DeclareSchema
from quiver_actors.errors import FormatError, QuiverError
from quiver_actors.node.worker.requests import _check_schema
from quiver_actors.store.files.core_file import decode_core
from quiver_actors.store.files.topic_list import decode_catalogue
from quiver_actors.store.recovery import realign_entry
from quiver_actors.store.segment.arrow_ipc import dictionary_ids
from quiver_actors.store.segment.check import run_to_end, verify_steps
from quiver_actors.store.segment.codec import decode_directory, decode_manifest
from quiver_actors.store.segment.compaction import Rewriting
from quiver_actors.store.segment.outline import read_outline
from quiver_actors.store.segment.reader import SegmentReader, read_footer
from quiver_actors.store.segment.salvage import salvage
from quiver_actors.store.staged.keys import decode_windows
from quiver_actors.store.staged.records import decode_journal, decode_prepared
from quiver_actors.store.subscriber.gaps import decode_gaps
from quiver_actors.store.subscriber.progress import decode_progress
from quiver_actors.store.subscriber.progress_journal import decode_progress_journal
from quiver_actors.store.wal import layout
from quiver_actors.store.wal.admission import check_push
from quiver_actors.store.wal.codec import decode_cursor
from quiver_actors.store.wal.reader import LogReader
from quiver_actors.store.wal.recovery import examine_log, read_entry
from quiver_actors.transactions.model import Decision, Token
from tests.fuzz import corpus, message_corpus
from tests.fuzz.corpus import Specimen, reader_of

Parse = Callable[[bytes], None]


def parse_log(content: bytes) -> None:
    """Parse a log like recovery does, adoption of other writers' entries included."""
    reader = LogReader(reader_of(content), len(content))
    found = examine_log("quiver.wal", reader, len(content), has_valid_trailer=False)
    for span in found.scan.entries:
        entry = read_entry(reader, span)
        if entry.placements:
            realign_entry(reader.body(span))


def parse_segment(content: bytes) -> None:
    """Read a segment like a subscriber does: all bundles, all slots. Damage to one bundle leaves the others readable."""
    reader = SegmentReader(content)
    for index in range(reader.bundle_count):
        reader.sequence(index), reader.item_count(index), reader.ingestion_ts(index)
        try:
            reader.bundle(index)
        except FormatError:
            continue
    reader.verify_checksum()


def parse_segment_tools(content: bytes) -> None:
    """Run the tools on a segment: open, scrub and compaction where the checksum fits, rescue where it does not."""
    read = reader_of(content)
    try:
        _open_and_verify(read, len(content))
        _rewrite(read, len(content))
    except QuiverError:
        _salvage(read, len(content))


def _open_and_verify(read: Callable[[int, int], bytes], size: int) -> None:
    read_footer(read, size)
    run_to_end(verify_steps(read, size))


def _rewrite(read: Callable[[int, int], bytes], size: int) -> None:
    for _ in Rewriting(read_outline(read, size), read).parts():
        pass


def _salvage(read: Callable[[int, int], bytes], size: int) -> None:
    for _ in Rewriting(salvage(read, size), read).parts():
        pass


def parse_table(content: bytes) -> None:
    if content[:1] == b"d":
        decode_directory(content[1:])
    else:
        decode_manifest(content[1:])


def parse_frames(content: bytes) -> None:
    """Parse frames like both ends of a connection do, in reads of odd sizes. A bad message ends a connection; here, parsing goes on."""
    reader = FrameReader()
    for start in range(0, len(content), 777):
        reader.feed(content[start : start + 777])
        for frame in reader.frames():
            for decode in (decode_client_message, decode_worker_message):
                try:
                    decode(frame)
                except QuiverError:
                    continue


def parse_push(content: bytes) -> None:
    span, push = message_corpus.split_push(content)
    check_push(span, layout.HEADER_BYTES, push, message_corpus.push_schemas())


def parse_schema(content: bytes) -> None:
    """Check a schema like a worker does when a client declares one."""
    _check_schema(DeclareSchema(1, "default", 0, bytes(32), content))
    dictionary_ids(content)


def _parse_progress(content: bytes) -> None:
    decode_progress(content)


def _parse_cursor(content: bytes) -> None:
    decode_cursor(content)


def _parse_core(content: bytes) -> None:
    decode_core(content)


RECORDS: dict[bytes, Callable[[bytes], object]] = {
    b"p": decode_prepared,
    b"j": decode_journal,
    b"w": decode_windows,
    b"g": decode_gaps,
    b"r": decode_progress_journal,
    b"c": decode_catalogue,
    b"t": Token.decode,
    b"d": Decision.decode,
}


def _parse_record(content: bytes) -> None:
    decode = RECORDS.get(content[:1])
    if decode is not None:
        decode(content[1:])


@dataclass(frozen=True)
class Target:
    parse: Parse
    specimens: Callable[[], list[Specimen]]


TARGETS: dict[str, Target] = {
    "log": Target(parse_log, corpus.log_specimens),
    "segment": Target(parse_segment, corpus.tiny_and_small_segments),
    "segment_tools": Target(parse_segment_tools, corpus.tiny_and_small_segments),
    "tables": Target(parse_table, corpus.table_specimens),
    "progress": Target(_parse_progress, corpus.progress_specimens),
    "cursor": Target(_parse_cursor, corpus.cursor_specimens),
    "core": Target(_parse_core, corpus.core_specimens),
    "records": Target(_parse_record, corpus.record_specimens),
    "schema": Target(parse_schema, message_corpus.schema_specimens),
    "frames": Target(parse_frames, message_corpus.frame_specimens),
    "push": Target(parse_push, message_corpus.push_specimens),
}
