"""Rates and levels from one status document to the next."""

from __future__ import annotations

import stat
from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest

from quiver_actors.cli.web.history import SAMPLES_MAX, History, Sample, Sampler
from quiver_actors.cli.web.history_file import NAME, load_history, save_history
from quiver_actors.store.status.status_storage import CoreStorageView
from tests.unit.cli.web.documents import document

SECOND_NS = 1_000_000_000


def test_the_first_sample_has_levels_but_no_rates() -> None:
    history = History()
    pressed = [CoreStorageView(core=0, pressure=0.2), CoreStorageView(core=1, pressure=0.7)]
    history.add(msgspec.structs.replace(document(base=100), cores=pressed))
    (sample,) = history.samples()
    assert sample.running
    assert sample.pressure == 0.7
    assert sample.bundles_in_per_second == 0
    assert sample.lag_bundles == document(base=100).subscribers[0].lag_bundles


def test_rates_are_the_change_per_second() -> None:
    history = History()
    history.add(document(unix_ns=SECOND_NS, base=100))
    history.add(document(unix_ns=6 * SECOND_NS, base=150))
    sample = history.samples()[-1]
    assert sample.bundles_in_per_second == 10
    assert sample.delivered_per_second == 10
    assert sample.cpu_fraction == 10e-9


def test_a_worker_that_began_anew_never_makes_a_negative_rate() -> None:
    history = History()
    history.add(document(unix_ns=SECOND_NS, base=1000))
    history.add(document(unix_ns=2 * SECOND_NS, base=10, pid=8))
    sample = history.samples()[-1]
    assert sample.bundles_in_per_second == 0
    assert sample.cpu_fraction >= 0


def test_absence_is_a_sample_and_ends_the_rates() -> None:
    history = History()
    history.add(document(unix_ns=SECOND_NS, base=100))
    history.add_absence(2 * SECOND_NS)
    history.add(document(unix_ns=3 * SECOND_NS, base=200))
    assert [sample.running for sample in history.samples()] == [True, False, True]
    assert history.samples()[-1].bundles_in_per_second == 0


def test_only_the_last_quarter_of_an_hour_is_kept() -> None:
    history = History()
    for second in range(SAMPLES_MAX + 5):
        history.add(document(unix_ns=second * SECOND_NS))
    assert len(history.samples()) == SAMPLES_MAX
    assert history.samples()[0].unix_ns == 5 * SECOND_NS


def test_a_later_process_goes_on_with_what_an_earlier_one_kept(tmp_path: Path) -> None:
    history = History()
    for second in (10, 20, 30):
        history.add(document(unix_ns=second * SECOND_NS))
    save_history(str(tmp_path), history.samples())
    assert stat.S_IMODE((tmp_path / NAME).stat().st_mode) == 0o600
    later = History(load_history(str(tmp_path), since_unix_ns=20 * SECOND_NS))
    later.add(document(unix_ns=40 * SECOND_NS))
    assert [sample.unix_ns // SECOND_NS for sample in later.samples()] == [20, 30, 40]
    assert sorted(tmp_path.iterdir()) == [tmp_path / NAME]


@pytest.mark.parametrize("content", [b"", b"[{]", b'[{"unix_ns": "now"}]', b"{}"])
def test_a_damaged_history_is_as_good_as_none(content: bytes, tmp_path: Path) -> None:
    (tmp_path / NAME).write_bytes(content)
    assert load_history(str(tmp_path), 0) == []
    save_history(str(tmp_path / "nowhere"), [])


def test_the_history_is_kept_when_the_server_ends(tmp_path: Path) -> None:
    kept: list[Sequence[Sample]] = []
    sampler = Sampler(lambda: document(unix_ns=SECOND_NS), 1000.0, keep=kept.append)
    sampler.start()
    sampler.close()
    assert [len(samples) for samples in kept] == [1]
