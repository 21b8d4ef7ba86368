"""Nothing unannounced: for each subscriber, acked + dropped by itself + notified = everything appended, no overlap, no hole.

Random mixes of pushes, seals, claims, outcomes, cumulative acks, lease expiry, lost consumers, damaged and dropped segments, seeks,
flushes and kills (also between the files of one flush), on a real engine over a real disk. A resolution counts from the flush that made it
durable: what was acked later than that and is then delivered again after a kill is at-least-once, not a hole. Who has durably
acknowledged a notice is never told again, and no bundle is both durably acked and announced, nor announced twice.
"""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from quiver_actors.errors import QuiverError
from quiver_actors.store.disk.posix import PosixDisk
from quiver_actors.store.jobs.records import FilesJob
from quiver_actors.store.subscriber.gaps import GapNotice
from quiver_actors.store.subscriber.progress import SubscriberProgress, decode_progress
from quiver_actors.store.subscriber.progress_journal import JOURNAL_NAME, current_content, decode_progress_journal
from tests.support.engine_driver import EngineDriver, drop_segment, topic_settings

SUBSCRIBERS = ("a", "b")
OWNERS = ("x", "y", "z")
LEASE_NS = 1_000_000
Bundle = tuple[int, int]


class Ledger:
    """What one subscriber knows, without asking the engine."""

    def __init__(self) -> None:
        self.resolved: set[Bundle] = set()
        self.durable: set[Bundle] = set()
        self.told: dict[int, set[Bundle]] = {}
        self.acked_notices: set[int] = set()
        self.held: dict[tuple[str, int], tuple[int, list[int]]] = {}
        """(owner, token): segment, indexes."""

    @property
    def notified(self) -> set[Bundle]:
        return {bundle for bundles in self.told.values() for bundle in bundles}


class Mix:
    """One random run."""

    def __init__(self, root: Path, seed: int) -> None:
        self.random = random.Random(seed)
        self.root = root
        self.disk = PosixDisk(str(root))
        settings = topic_settings(segment_target_size_bytes=64 << 10)
        self.driver = EngineDriver(self.disk, settings)
        self.appended: set[Bundle] = set()
        self.ledgers = {name: Ledger() for name in SUBSCRIBERS}
        self.number = 0
        self.register()

    def register(self) -> None:
        for name in SUBSCRIBERS:
            self.driver.engine.registrations.register(name, "earliest")
            self.driver.engine.registrations.set_terms(name, lease_ns=LEASE_NS, max_deliveries=0, exhausted="drop")
        self.driver.settle()

    def run(self, steps: int) -> None:
        actions = [
            (self.push, 5),
            (self.seal, 2),
            (self.claim, 8),
            (self.resolve, 8),
            (self.pass_time, 2),
            (self.lose_consumer, 1),
            (self.ack_through, 0.5),
            (self.tell, 2),
            (self.ack_notice, 2),
            (self.flush, 2),
            (self.drop_segment, 0.5),
            (self.seek, 0.5),
            (self.damage, 0.5),
            (self.kill, 0.8),
        ]
        chosen = self.random.choices([action for action, _ in actions], [weight for _, weight in actions], k=steps)
        for action in chosen:
            action()
            self.check_no_overlap()
        self.finish()

    # --- what happens ------------------------------------------------------------------------------------------------------

    def push(self) -> None:
        count = self.random.randint(1, 6)
        for run in self.driver.push_numbered(self.number, count):
            self.appended |= {(run.segment_seq, run.bundle_index + index) for index in range(run.count)}
        self.number += count
        self.driver.settle()

    def seal(self) -> None:
        self.driver.seal()

    def claim(self) -> None:
        name, owner = self.random.choice(SUBSCRIBERS), self.random.choice(OWNERS)
        order = self.random.choice(["oldest", "oldest", "newest", "newest_backfill"])
        ledger = self.ledgers[name]
        for grant in self.driver.claim(name, owner, self.random.randint(1, 8), order=order, backfill_ratio=3):
            bundles = {(grant.segment_seq, index) for index in grant.indexes}
            assert not bundles & ledger.durable, "delivered again although its ack was durable"
            assert not bundles & ledger.notified, "delivered although announced as lost"
            assert bundles <= self.appended
            ledger.held[owner, grant.token] = grant.segment_seq, list(grant.indexes)

    def resolve(self) -> None:
        ledger = self.ledgers[name := self.random.choice(SUBSCRIBERS)]
        if not ledger.held:
            return
        owner, token = self.random.choice(sorted(ledger.held))
        segment_seq, held = ledger.held[owner, token]
        some = self.random.sample(held, self.random.randint(1, len(held)))
        outcome = self.random.choice(["ack", "ack", "ack", "reject", "defer", "return"])
        delay_ns = self.random.choice([0, LEASE_NS // 2])
        refused = self.driver.engine.claims.resolve(name, owner, segment_seq, token, outcome, some, delay_ns)
        gone = {index for _, indexes in refused for index in indexes}
        if outcome in ("ack", "reject"):
            ledger.resolved |= {(segment_seq, index) for index in some if index not in gone}
        left = [index for index in held if index not in some]
        if left:
            ledger.held[owner, token] = segment_seq, left
        else:
            del ledger.held[owner, token]

    def pass_time(self) -> None:
        self.driver.clock.advance(self.random.choice([LEASE_NS // 3, LEASE_NS]))
        self.driver.settle()

    def lose_consumer(self) -> None:
        owner = self.random.choice(OWNERS)
        self.driver.events += self.driver.engine.claims.release(owner)
        for ledger in self.ledgers.values():
            ledger.held = {key: value for key, value in ledger.held.items() if key[0] != owner}

    def ack_through(self) -> None:
        if not self.appended:
            return
        name = self.random.choice(SUBSCRIBERS)
        position = self.random.choice(sorted(self.appended)[: len(self.appended) // 2 + 1])
        before = self.owed(name)
        self.driver.engine.claims.ack_through(name, *position)
        self.ledgers[name].resolved |= {bundle for bundle in before if bundle <= position}

    def owed(self, name: str) -> set[Bundle]:
        """Return the bundles that are neither resolved nor lost, announced or not."""
        given_up = {bundle for notice in self.notices(name) for bundle in covered(notice)}
        return self.appended - self.ledgers[name].resolved - given_up - self.ledgers[name].notified

    def notices(self, name: str) -> list[GapNotice]:
        return list(self.driver.engine.progress.registry.get(name).gaps)

    def tell(self) -> None:
        name, owner = self.random.choice(SUBSCRIBERS), self.random.choice(OWNERS)
        ledger = self.ledgers[name]
        notice = self.driver.engine.claims.take_gap(name, owner, in_order=self.random.random() < 0.7)
        if notice is None:
            return
        assert notice.notice not in ledger.acked_notices, "told again although that was acknowledged"
        bundles = covered(notice)
        assert ledger.told.setdefault(notice.notice, bundles) == bundles

    def ack_notice(self) -> None:
        name = self.random.choice(SUBSCRIBERS)
        ledger = self.ledgers[name]
        open_notices = sorted(set(ledger.told) - ledger.acked_notices)
        if open_notices:
            notice = self.random.choice(open_notices)
            ticket = self.driver.engine.claims.ack_gap(name, notice)
            self.driver.settle()
            assert self.driver.engine.progress.durable >= ticket
            ledger.acked_notices.add(notice)
            self.note_durable()

    def flush(self) -> None:
        self.driver.flush_progress()
        self.note_durable()

    def note_durable(self) -> None:
        if not self.driver.engine.progress.is_dirty:
            for ledger in self.ledgers.values():
                ledger.durable = set(ledger.resolved)

    def drop_segment(self) -> None:
        sealed = self.driver.engine.segments()
        if sealed:
            info = self.random.choice(sealed)
            drop_segment(self.driver.engine, info.segment_seq, self.random.choice(["evicted", "expired", "dropped"]))
            self.forget_claims_of(info.segment_seq)

    def seek(self) -> None:
        """Seek back: what was resolved, or announced and is still stored, is owed again."""
        name = self.random.choice(SUBSCRIBERS)
        engine, ledger = self.driver.engine, self.ledgers[name]
        position = self.random.choice([*sorted(self.appended), engine._parts.logs.end])
        stored = {info.segment_seq for info in engine.segments()} - set(
            engine._parts.sealed_segments.deletions.doomed
        ) | set(engine._parts.logs.bundle_counts())
        known = {notice.notice for notice in self.notices(name)}
        engine.registrations.seek(name, f"bundle:0/{position[0]}/{position[1]}")
        engine.registrations.set_terms(name, lease_ns=LEASE_NS, max_deliveries=0, exhausted="drop")
        kept = {each.notice: covered(each) for each in self.notices(name) if each.notice in known}
        left_alone = {bundle for bundles in kept.values() for bundle in bundles}
        again = {bundle for bundle in self.appended if bundle >= position and bundle[0] in stored} - left_alone
        ledger.resolved -= again
        ledger.durable -= again
        # One that nobody has acknowledged may be withdrawn; what of it is not owed again has a new notice then.
        told = {
            notice: bundles for notice, bundles in ledger.told.items() if notice in kept.keys() | ledger.acked_notices
        }
        ledger.told = {notice: bundles - again for notice, bundles in told.items()}
        ledger.held.clear()
        self.flush()

    def damage(self) -> None:
        sealed = self.driver.engine.segments()
        if not sealed:
            return
        info = self.random.choice(sealed)
        path = self.root / f"default/core_0/segments/{info.segment_seq:016}.qseg"
        path.chmod(0o600)
        content = bytearray(path.read_bytes())
        at = self.random.randrange(len(content)) if self.random.random() < 0.7 else len(content) - 10
        content[at] ^= 0xFF
        path.write_bytes(content)
        if self.random.random() < 0.5:
            self.driver.engine.check_segment(info.segment_seq)
        if self.random.random() < 0.7:
            self.kill()
        else:
            self.driver.settle()

    def forget_claims_of(self, segment_seq: int) -> None:
        """Half of the consumers try to ack all the same: they are refused, which `check_no_overlap` proves."""
        if self.random.random() < 0.5:
            for ledger in self.ledgers.values():
                ledger.held = {key: value for key, value in ledger.held.items() if value[0] != segment_seq}

    def kill(self) -> None:
        """Kill the engine at any step of the background work."""
        for _ in range(self.random.randint(1, 3)):
            self.driver.clock.advance(60_000_000)
            self.run_some_jobs(self.random.randrange(6))
            self.driver.engine._lock.release()
            # What was not durable may or may not have become so just now: the files that it is opened from say it.
            for name, ledger in self.ledgers.items():
                progress = self.progress_file(name)
                ledger.resolved = {b for b in ledger.resolved if b in ledger.durable or is_resolved(progress, b)}
                ledger.held.clear()
            self.driver.reopen()
        self.register()
        self.note_durable()

    def progress_file(self, name: str) -> SubscriberProgress:
        directory = self.root / "default/core_0"
        content, journal = (directory / f"quiver.sub.{name}").read_bytes(), directory / JOURNAL_NAME
        record = decode_progress_journal(journal.read_bytes()).latest.get(name) if journal.exists() else None
        return decode_progress(current_content(content, record))

    def run_some_jobs(self, count: int) -> None:
        """The last one is cut off: a flush may have written some of its files only."""
        for left in range(count, 0, -1):
            job = self.driver.engine.next_background()
            if job is None:
                return
            if left == 1 and isinstance(job, FilesJob):
                job.writes = job.writes[: self.random.randrange(len(job.writes) + 1)]
            job.run()
            if left == 1:
                return
            self.driver.engine.finish(job)

    # --- what must hold ------------------------------------------------------------------------------------------------------

    def check_no_overlap(self) -> None:
        for name, ledger in self.ledgers.items():
            seen: set[Bundle] = set()
            for bundles in ledger.told.values():
                assert not bundles & seen, f"{name} was told twice"
                seen |= bundles
            assert not seen & ledger.durable, f"{name}: announced although durably acked"
            assert seen <= self.appended

    def finish(self) -> None:
        """Seal and consume everything: then nothing is missing."""
        self.lose_all()
        self.driver.seal()
        self.driver.clock.advance(10 * LEASE_NS)
        self.driver.settle()
        for name, ledger in self.ledgers.items():
            while True:
                while (notice := self.driver.engine.claims.take_gap(name, "last")) is not None:
                    ledger.told[notice.notice] = covered(notice)
                grants = self.driver.claim(name, "last", 1000)
                for grant in grants:
                    indexes = list(grant.indexes)
                    assert (
                        self.driver.engine.claims.resolve(
                            name, "last", grant.segment_seq, grant.token, "ack", indexes, 0
                        )
                        == []
                    )
                    ledger.resolved |= {(grant.segment_seq, index) for index in indexes}
                if not grants:
                    break
        self.check_no_overlap()
        for name, ledger in self.ledgers.items():
            assert not ledger.resolved & ledger.notified, f"{name}: acked and announced"
            assert ledger.resolved | ledger.notified == self.appended, f"{name}: a hole"
            for told in ledger.told:
                self.driver.engine.claims.ack_gap(name, told)
            self.driver.settle()
            assert self.driver.engine.owed.pending(name).drained

    def lose_all(self) -> None:
        for owner in OWNERS:
            self.driver.engine.claims.release(owner)


def covered(notice: object) -> set[Bundle]:
    first, count = notice.bundle_index_first, notice.bundle_count  # type: ignore[attr-defined]
    return {(notice.segment_seq, index) for index in range(first, first + count)}  # type: ignore[attr-defined]


def is_resolved(progress: SubscriberProgress, bundle: Bundle) -> bool:
    segment_seq, index = bundle
    if segment_seq < progress.watermark:
        return True
    entry = progress.entries.get(segment_seq)
    return entry is not None and bool(int.from_bytes(entry.bitmap, "little") >> index & 1)


@pytest.mark.parametrize("seed", range(25))
def test_acked_and_notified_are_everything_and_never_both(tmp_path: Path, seed: int) -> None:
    mix = Mix(tmp_path, seed)
    try:
        mix.run(120)
    except QuiverError as error:
        raise AssertionError(f"seed {seed}: {error!r}") from error
    finally:
        mix.disk.close()
