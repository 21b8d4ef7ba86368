"""Consumers that read the archive by themselves, and those that cannot. Owner: the loop thread of a worker.

What is archived of a topic and leaves the disk goes on being delivered to a subscriber all of whose consumers read the archive. The engine
is told with each consumer that comes or goes. While there is none, what the last ones could holds: it is durable with the progress.

The archiver itself is a subscriber, too, which only it uses.
"""

from __future__ import annotations

from collections.abc import Iterable

from quiver_actors.base.model import ARCHIVE_SUBSCRIBER
from quiver_actors.base.protocol.messages import ClaimRef, Credit, Message, Pending, Register, Seek, Unregister
from quiver_actors.errors import NotAllowed, UsageError
from quiver_actors.node.worker.attachments import Attachments
from quiver_actors.store.engine import Engine


def note_readers(engine: Engine, attachments: Attachments, subscribers: Iterable[str]) -> None:
    """Tell an engine of each of its subscribers that has consumers whether all of these read the archive."""
    for subscriber in subscribers:
        if attached := attachments.of(subscriber):
            is_read = all(attachment.reads_archive for attachment in attached)
            engine.registrations.read_archive(subscriber, is_read=is_read)


def refuse_others(engine: Engine, subscriber: str, segment_seq: int | None = None) -> None:
    """Refuse a consumer that cannot read the archive.

    Raises:
        UsageError: bundles of the subscriber (of that segment, where one is named) are in the archive.
    """
    if engine.registrations.is_archived(subscriber, segment_seq):
        raise UsageError(
            f"subscriber {subscriber!r} of topic {engine.topic!r} still gets bundles from the archive: only consumers of "
            "quiver_actors.connect and quiver_actors.aio.connect can, in this version or a newer one"
        )


def protect_archiver(message: Message, *, is_archiver: bool, is_guest: bool, is_enabled: bool) -> None:
    """Refuse whoever uses the archiver's subscriber in its place: what it has resolved counts as archived, and may go from the disk.

    Args:
        message: names that subscriber.
        is_archiver: whether the archiver sends the message.
        is_guest: whether a user does who is not trusted.
        is_enabled: whether the topic is archived. Where it is not, the subscriber is a leftover that its operator may drop.

    Raises:
        NotAllowed: a guest may only look at it. UsageError: so may everybody else.
    """
    if isinstance(message, Pending):
        return
    if is_guest:
        raise NotAllowed(f"subscriber {ARCHIVE_SUBSCRIBER!r} is the archiver's: nobody else may use it")
    takes_bundles = isinstance(message, Credit | ClaimRef) or (isinstance(message, Register) and message.reads_archive)
    is_dropped = isinstance(message, Unregister) and not is_enabled
    if takes_bundles or isinstance(message, Seek) or not (is_archiver or is_dropped):
        raise UsageError(
            f"subscriber {ARCHIVE_SUBSCRIBER!r} is the archiver's: what it has resolved counts as archived. Choose another name; "
            "to have the topic archived no more, set archive.enabled to false"
        )
