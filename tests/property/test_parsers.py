"""Hostile and damaged bytes: refused with errors of ours, soon and without taking memory; no flipped bit is believed."""

from __future__ import annotations

import contextlib

import pytest

from quiver_actors.base.protocol.framing import decode_client_message, decode_worker_message
from quiver_actors.errors import FormatError, ProtocolError
from quiver_actors.store.segment.dictionaries import DictionaryDecoder
from quiver_actors.store.segment.layout import EXTENSION, TRAILER
from quiver_actors.store.segment.outline import read_outline
from quiver_actors.store.segment.reader import SegmentReader
from quiver_actors.store.segment.salvage import salvage
from quiver_actors.store.wal import layout
from tests import evidence
from tests.fuzz import bitflips, corpus, message_corpus
from tests.fuzz.corpus import reader_of
from tests.fuzz.parsers import TARGETS


@pytest.mark.timeout(600)
def test_mutants_are_refused_with_errors_of_ours_in_time_and_memory() -> None:
    tallies = evidence.parsers(evidence.QUICK)
    assert [failure for tally in tallies.values() for failure in tally.failures] == []
    assert {name: tally.inputs for name, tally in tallies.items()} == evidence.parser_counts(evidence.QUICK)
    assert all(tally.refused for name, tally in tallies.items())


@pytest.mark.timeout(300)
def test_a_flipped_bit_is_never_believed_and_costs_only_its_bundle() -> None:
    tallies = evidence.flips(evidence.QUICK)
    assert [failure for tally in tallies.values() for failure in tally.failures] == []
    for name, tally in tallies.items():
        assert tally.detected + tally.harmless == tally.flips, name
    assert tallies["log"].flips_that_cost_more == 0
    assert tallies["segment_in_place"].flips_that_cost_more == 0
    assert tallies["segment_compacted"].flips_that_cost_more == 0


@pytest.mark.parametrize("target", TARGETS)
def test_specimens_are_taken_as_they_are(target: str) -> None:
    for specimen in TARGETS[target].specimens():
        TARGETS[target].parse(specimen.content)


@pytest.mark.parametrize("decode", [decode_client_message, decode_worker_message])
def test_text_that_is_not_utf8_is_a_protocol_error(decode: object) -> None:
    """A message with a broken text ended the worker: msgspec raises UnicodeDecodeError for it, which is no DecodeError.
    Any client could stop every topic of that core. It is a ProtocolError now, and costs that client its connection.
    """
    client, worker = b"\x94\x01\x01\x01\xa1\xff", b"\x94\x43\x01\xa1\xff\xa0"
    assert callable(decode)
    with pytest.raises(ProtocolError):
        decode(client if decode is decode_client_message else worker)


def test_dictionary_message_that_ends_the_stream_cannot_be_decoded() -> None:
    """A dictionary message with an end mark in its place made pyarrow raise StopIteration, through the builder into the loop.
    Such dictionaries count as undecodable now.
    """
    schema = message_corpus.push_schemas()
    message = next(stream.message for stream in schema.values() if stream.has_dictionaries)
    assert DictionaryDecoder(message).arrays([b"\xff\xff\xff\xff\0\0\0\0"]) is None


def test_forged_counts_take_no_memory() -> None:
    """Segments with valid checksums and forged counts made the tools ask for up to 96 GiB, or end with an OverflowError: streams in
    the footer, rows and batches in the directory.
    """
    content = corpus.segment_specimens()[1].content
    reader = SegmentReader(content)
    directory = slice(reader.footer.directory_offset, reader.footer.manifest_offset)
    footer = len(content) - 16 - int.from_bytes(content[-16:-12], "little")
    counts = [stream.chunk_count.to_bytes(4, "little") for stream in reader.streams]
    rows = [stream.row_count.to_bytes(8, "little") for stream in reader.streams]
    for column in (counts, rows):
        at = content.index(b"".join(column), directory.start, directory.stop)
        _check_forged(content, at, b"\xfe" + b"\xff" * (len(column[0]) - 1))
    _check_forged(content, footer + 2, b"\xfe\xff\xff\xff")


def _check_forged(content: bytes, at: int, value: bytes) -> None:
    forged = bytearray(content)
    forged[at : at + len(value)] = value
    corpus.mend_segment(forged)
    read = reader_of(bytes(forged))
    with pytest.raises(FormatError):
        read_outline(read, len(forged))
    with contextlib.suppress(FormatError):
        salvage(read, len(forged))


def test_every_flipped_bit_of_a_log_header_is_noticed_and_costs_nothing() -> None:
    """A flipped bit in header_size made a log of ours one of another writer whose entries begin elsewhere: the first entries were gone,
    or all, and nobody was told. One in `ARROW1` made it such a log too. The header's CRC decides now whose it is.
    """
    tally = bitflips.flip_log(lambda _: range(layout.HEADER_BYTES * 8))
    assert tally.failures == []
    assert tally.bundles_lost == 0


def test_rescue_does_not_believe_where_a_damaged_footer_ends_the_entries() -> None:
    """A flipped bit in the log positions of a segment's footer cut off the last entries when the segment was rebuilt, although
    nothing was wrong with them. Entries are taken now for as long as one follows the other.
    """
    content = corpus.segment_specimens()[0].content
    positions = len(content) - TRAILER.size - EXTENSION.size + 2
    tally = bitflips.flip_segment(content, lambda _: range(positions * 8, (positions + 16) * 8))
    assert tally.failures == []
    assert tally.bundles_lost == 0
