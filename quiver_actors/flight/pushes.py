"""Pushes of other hosts: what a `DoPut` brings is pushed by a client of this host, and answered when it is as durable as its receipts say.

Two forms: that of remote clients (the descriptor's command is `PushTerms`, bundles come as `frames`), and that of any Flight client (the
descriptor is a path of topic and slot, each record batch is a bundle). Nothing is kept here between two pushes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import groupby
from typing import cast

import msgspec
import pyarrow as pa
import pyarrow.flight as fl

from quiver_actors.base.model import Receipt
from quiver_actors.base.rights import TokenHolder
from quiver_actors.base.units import SECOND_NS, format_size
from quiver_actors.client import Client
from quiver_actors.client.slots import Bundle
from quiver_actors.errors import BundleTooLarge, InvalidBundle, ProtocolError, UsageError
from quiver_actors.flight import remote_contract as rc
from quiver_actors.flight.callers import check_topic
from quiver_actors.flight.consumers import topic_info
from quiver_actors.flight.frames import FRAMES, unframed
from quiver_actors.flight.tables import slot_named

ROW = "flight.Push"
GENERIC_TIMEOUT_SECONDS = 30.0


class Pushes:
    """The pushes to one node. Several threads may call its methods."""

    def __init__(self, client: Callable[[], Client]) -> None:
        """`client` returns the client to use."""
        self._client = client

    def put(
        self,
        holder: TokenHolder,
        descriptor: fl.FlightDescriptor,
        reader: fl.MetadataRecordBatchReader,
        writer: fl.FlightMetadataWriter,
    ) -> None:
        """Store what the caller sends, and write the receipts.

        Raises:
            NotAllowed: the token may not push to the topic.
            ProtocolError: the descriptor or a message is not what is expected.
            BundleTooLarge: a message is larger than any bundle.
            As `Client.push`.
        """
        if descriptor.descriptor_type == fl.DescriptorType.CMD:
            self._put_frames(holder, _terms(descriptor.command), reader, writer)
        else:
            self._put_batches(holder, descriptor.path or [], reader, writer)

    def _put_frames(
        self,
        holder: TokenHolder,
        terms: rc.PushTerms,
        reader: fl.MetadataRecordBatchReader,
        writer: fl.FlightMetadataWriter,
    ) -> None:
        check_topic(holder, ROW, terms.topic)
        client = self._client()
        if reader.schema != FRAMES:
            raise ProtocolError(f"bundles came with the columns {reader.schema.names[:8]}: expected {FRAMES.names}")
        writer.write(pa.py_buffer(msgspec.json.encode(rc.PushReady(topic_info(client, terms.topic)))))
        message = next(_messages(reader), None)
        if message is None:
            return
        if message.num_rows > rc.PUSH_BUNDLES_MAX:
            raise ProtocolError(
                f"a message came with {message.num_rows} bundles: expected at most {rc.PUSH_BUNDLES_MAX}"
            )
        frames = list(unframed(message, rc.PushedFacts))
        bundles = [cast("Bundle", frame.batches) for frame in frames]
        receipts = client.push_many(
            bundles,
            topic=terms.topic,
            key=terms.key,
            item_counts=[frame.facts.item_count for frame in frames],
            producer=terms.producer,
            sequence=terms.sequence,
            timeout=terms.timeout_ns / SECOND_NS,
        )
        writer.write(pa.py_buffer(msgspec.json.encode(rc.PushDone(list(runs_of(receipts))))))

    def _put_batches(
        self,
        holder: TokenHolder,
        path: list[bytes],
        reader: fl.MetadataRecordBatchReader,
        writer: fl.FlightMetadataWriter,
    ) -> None:
        names = [part.decode() for part in path]
        if not 1 <= len(names) <= 2:
            raise ProtocolError(f"path {names!r} names nothing to push to: expected a topic, or a topic and a slot")
        check_topic(holder, ROW, names[0])
        client = self._client()
        for batch in _messages(reader):
            bundle = batch if len(names) == 1 else {slot_named(names[1]): batch}
            receipt = client.push(bundle, topic=names[0], timeout=GENERIC_TIMEOUT_SECONDS)
            writer.write(pa.py_buffer(msgspec.json.encode(rc.PushDone(list(runs_of([receipt]))))))


def runs_of(receipts: Iterable[Receipt]) -> Iterator[rc.StoredRun]:
    """Receipts as runs of consecutive bundles."""
    placed = enumerate(receipts)
    for _, group in groupby(placed, lambda item: _run_of(*item)):
        receipts_of_run = [receipt for _, receipt in group]
        first = receipts_of_run[0]
        yield rc.StoredRun(
            *first.bundle_id[1:], first.sequence, len(receipts_of_run), int(first.durability), first.duplicate
        )


def _run_of(place: int, receipt: Receipt) -> tuple[object, ...]:
    """What the receipts of one run have in common."""
    _, core, segment_seq, bundle_index = receipt.bundle_id
    return core, segment_seq, bundle_index - place, receipt.sequence - place, receipt.durability, receipt.duplicate


def _terms(command: bytes) -> rc.PushTerms:
    terms = msgspec.json.decode(command, type=rc.PushTerms)
    if terms.version != rc.REMOTE_VERSION:
        raise ProtocolError(version_text(terms.version))
    if not 0 <= terms.timeout_ns <= rc.TIMEOUT_NS_MAX:
        raise UsageError(
            f"a push cannot wait {terms.timeout_ns / SECOND_NS:.0f} s at the server: expected up to {rc.TIMEOUT_NS_MAX // SECOND_NS} s"
        )
    return terms


def version_text(version: int) -> str:
    """The words for a client of another version."""
    return (
        f"the client speaks version {version} of the remote protocol, this server version {rc.REMOTE_VERSION}: install the same "
        "version of quiver-actors on both hosts"
    )


def _messages(reader: fl.MetadataRecordBatchReader) -> Iterator[pa.RecordBatch]:
    """The record batches of a stream, each of which can be believed."""
    while True:
        try:
            batch = reader.read_chunk().data
        except StopIteration:
            return
        except pa.ArrowInvalid as error:
            raise InvalidBundle(f"what came is no Arrow batch: {error}") from error
        if batch is None:
            raise ProtocolError("a message came without a record batch")
        if batch.get_total_buffer_size() > rc.PUSH_BYTES_MAX:
            raise BundleTooLarge(
                f"a message of {format_size(batch.get_total_buffer_size())} came: expected at most {format_size(rc.PUSH_BYTES_MAX)}"
            )
        try:
            batch.validate(full=True)
        except pa.ArrowInvalid as error:
            raise InvalidBundle(f"what came is no Arrow batch: {error}") from error
        yield batch
