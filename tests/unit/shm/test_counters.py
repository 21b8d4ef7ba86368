"""The counters page: layout, rows, life of regions, forks, readers without help."""

from __future__ import annotations

import os
import signal
import struct
import time
from collections.abc import Iterator

import posix_ipc
import pytest

from quiver_actors.shm.counters import VALUES_PER_ROW, CountersPage, RegionSnapshot, RowSnapshot
from quiver_actors.shm.errors import ShmError
from quiver_actors.shm.words import WORD_MAX
from tests.unit.shm.children import Gate, fork, join

REGIONS = 3
ROWS = 4
REGION_BYTES = 64 + ROWS * 512


@pytest.fixture
def page(name: str) -> Iterator[CountersPage]:
    created = CountersPage.create(name, REGIONS, ROWS, figures_version=7)
    yield created
    created.close()


@pytest.fixture
def reader(page: CountersPage) -> Iterator[CountersPage]:
    attached = CountersPage.attach(page.name)
    yield attached
    attached.close()


def content(name: str) -> bytes:
    memory = posix_ipc.SharedMemory(name, read_only=True)
    try:
        return os.pread(memory.fd, 1 << 20, 0)
    finally:
        memory.close_fd()


def values(*leading: int) -> tuple[int, ...]:
    return leading + (0,) * (VALUES_PER_ROW - len(leading))


def test_page_layout_is_as_documented(page: CountersPage) -> None:
    writer = page.writer(1)
    writer.begin(4321, 99)
    writer.set_state(3)
    writer.heartbeat(55)
    writer.row(9, "first")
    row = writer.row(2, "zweite Zeile: ü")
    row.set(0, 1)
    row.set(VALUES_PER_ROW - 1, WORD_MAX)

    found = content(page.name)
    assert len(found) == 128 + REGIONS * REGION_BYTES
    magic, version, figures_version, regions, rows, created_unix_ns, pid = struct.unpack_from("<8s6Q", found)
    assert (magic, version, figures_version, regions, rows) == (b"QVCOUNTS", 1, 7, REGIONS, ROWS)
    assert (created_unix_ns, pid) == (page.created_unix_ns, os.getpid())
    region = 128 + REGION_BYTES
    assert struct.unpack_from("<8Q", found, region) == (2, 4321, 1, 3, 55, 99, 0, 0)
    second = region + 64 + 512
    sequence, kind, label = struct.unpack_from("<QQ216s", found, second)
    assert sequence % 2 == 0
    assert (kind, label) == (2, "zweite Zeile: ü".encode().ljust(216, b"\0"))
    assert struct.unpack_from("<35Q", found, second + 232) == (1, *(0,) * 33, WORD_MAX)


def test_page_attached_shows_the_creators_facts(page: CountersPage, reader: CountersPage) -> None:
    assert (reader.regions, reader.rows_per_region, reader.figures_version) == (REGIONS, ROWS, 7)
    assert reader.created_unix_ns == page.created_unix_ns
    assert abs(reader.created_unix_ns - time.time_ns()) < 600 * 10**9


def test_page_is_private_to_its_user(page: CountersPage) -> None:
    assert os.stat(f"/dev/shm{page.name}").st_mode & 0o777 == 0o600


def test_page_of_untouched_regions_reads_as_generation_0(reader: CountersPage) -> None:
    assert reader.read() == [RegionSnapshot(region, 0, 0, 0, 0, 0, ()) for region in range(REGIONS)]


def test_region_written_is_read_by_both_sides(page: CountersPage, reader: CountersPage) -> None:
    writer = page.writer(2)
    writer.begin(11, 22)
    writer.set_state(3)
    writer.heartbeat(44)
    writer.row(2, "clicks").set(1, 10)
    expected = RegionSnapshot(2, 11, 1, 3, 44, 22, (RowSnapshot(2, "clicks", values(0, 10)),))
    assert reader.read()[2] == page.read_region(2) == expected


def test_region_begun_again_is_the_next_generation_without_rows(page: CountersPage, reader: CountersPage) -> None:
    writer = page.writer(0)
    writer.begin(1, 100)
    row = writer.row(2, "old")
    row.set(0, 5)
    writer.begin(2, 200)
    assert reader.read()[0] == RegionSnapshot(0, 2, 2, 0, 0, 200, ())
    assert writer.generation == 2
    with pytest.raises(ShmError):
        row.set(0, 6)
    writer.row(2, "new")
    assert reader.read()[0].rows == (RowSnapshot(2, "new", values()),)


def test_region_writer_made_later_takes_over_the_rows(page: CountersPage, reader: CountersPage) -> None:
    page.writer(0).row(2, "kept").set(3, 33)
    later = page.writer(0)
    later.row(2, "kept").add(3, 1)
    assert reader.read()[0].rows == (RowSnapshot(2, "kept", values(0, 0, 0, 34)),)
    assert len([later.row(2, f"row {n}") for n in range(ROWS - 1)]) == ROWS - 1


def test_row_is_the_same_for_the_same_kind_and_label(page: CountersPage, reader: CountersPage) -> None:
    writer = page.writer(0)
    assert writer.row(2, "a") is writer.row(2, "a")
    assert writer.row(3, "a") is not writer.row(2, "a")
    assert [(row.kind, row.label) for row in reader.read()[0].rows] == [(2, "a"), (3, "a")]


def test_row_values_are_set_added_and_clamped_at_zero(page: CountersPage, reader: CountersPage) -> None:
    row = page.writer(0).row(2, "a")
    row.set(0, 7)
    row.add(0, -3)
    row.add(1, -1)
    row.set(2, -5)
    row.set(3, WORD_MAX)
    row.set(VALUES_PER_ROW - 1, 1)
    assert [row.get(index) for index in (0, 1, 2, 3, VALUES_PER_ROW - 1)] == [4, 0, 0, WORD_MAX, 1]
    assert reader.read()[0].rows[0].values == (4, 0, 0, WORD_MAX, *(0,) * (VALUES_PER_ROW - 5), 1)


def test_row_refuses_what_is_no_figure(page: CountersPage) -> None:
    writer = page.writer(0)
    row = writer.row(2, "a")
    with pytest.raises(ShmError):
        row.set(VALUES_PER_ROW, 1)
    with pytest.raises(ShmError):
        row.add(VALUES_PER_ROW, 1)
    with pytest.raises(ShmError):
        row.set(0, WORD_MAX + 1)
    with pytest.raises(ShmError):
        row.set(0, 1.5)  # type: ignore[arg-type]
    for kind in (0, -1):
        with pytest.raises(ShmError, match="expected a positive number"):
            writer.row(kind, "b")


def test_rows_run_out_with_an_error_and_a_dropped_one_is_used_again(page: CountersPage, reader: CountersPage) -> None:
    writer = page.writer(0)
    rows = [writer.row(2, f"row {n}") for n in range(ROWS)]
    with pytest.raises(ShmError, match="no row left for 'one more': all 4 are in use"):
        writer.row(2, "one more")
    rows[1].set(0, 77)
    writer.drop(rows[1])
    writer.drop(rows[1])
    assert [row.label for row in reader.read()[0].rows] == ["row 0", "row 2", "row 3"]
    with pytest.raises(ShmError, match="released"):
        rows[1].set(0, 78)
    assert writer.row(2, "one more").index == 1
    assert reader.read()[0].rows[1] == RowSnapshot(2, "one more", values())


def test_row_dropped_does_not_free_the_row_that_came_after_it(page: CountersPage, reader: CountersPage) -> None:
    writer = page.writer(0)
    first = writer.row(2, "a")
    writer.drop(first)
    writer.row(2, "a")
    writer.drop(first)
    assert [row.label for row in reader.read()[0].rows] == ["a"]


def test_row_relabelled_keeps_its_values(page: CountersPage, reader: CountersPage) -> None:
    writer = page.writer(0)
    row = writer.row(4, "first error, a long message")
    row.set(1, 1)
    writer.relabel(row, "second")
    row.add(1, 1)
    assert reader.read()[0].rows == (RowSnapshot(4, "second", values(0, 2)),)
    assert writer.row(4, "second") is row
    assert writer.row(4, "first error, a long message") is not row
    writer.relabel(row, "second")


def test_row_relabel_to_a_label_in_use_or_of_a_dropped_row_is_refused(page: CountersPage) -> None:
    writer = page.writer(0)
    row = writer.row(2, "a")
    writer.row(2, "b")
    with pytest.raises(ShmError, match="another row of kind 2 with the label 'b'"):
        writer.relabel(row, "b")
    writer.drop(row)
    with pytest.raises(ShmError, match="was dropped"):
        writer.relabel(row, "c")
    with pytest.raises(ShmError, match="not a row of region 1"):
        page.writer(1).relabel(writer.row(2, "b"), "c")


def test_row_sequence_moves_with_its_meaning_and_not_with_its_values(page: CountersPage) -> None:
    """A reader that copies label and values while the row changes hands must see the sequence move."""

    def sequence() -> int:
        found: int = struct.unpack_from("<Q", content(page.name), 128 + 64)[0]
        return found

    writer = page.writer(0)
    row = writer.row(2, "a")
    seen = [sequence()]
    row.set(0, 1)
    seen.append(sequence())
    writer.relabel(row, "b")
    seen.append(sequence())
    writer.drop(row)
    seen.append(sequence())
    assert seen == [2, 2, 4, 6]


@pytest.mark.parametrize(
    ("label", "kept"),
    [
        ("x" * 216, "x" * 216),
        ("x" * 300, "x" * 216),
        ("x" * 215 + "ü", "x" * 215),
        ("ü" * 200, "ü" * 108),
        ("x" * 214 + "€", "x" * 214),
        ("", ""),
        ("nul\0inside", "nul inside"),
        ("lone \ud800 surrogate", "lone ? surrogate"),
    ],
)
def test_row_label_is_cut_at_a_character_border(
    page: CountersPage, reader: CountersPage, label: str, kept: str
) -> None:
    writer = page.writer(0)
    row = writer.row(2, label)
    assert reader.read()[0].rows[0].label == row.label == kept
    assert writer.row(2, label) is row


def test_forked_child_writes_its_own_region(page: CountersPage, reader: CountersPage, gates: tuple[Gate, Gate]) -> None:
    written, go_on = gates
    mine, childs = page.writer(0), page.writer(1)
    mine.begin(os.getpid(), 1)

    def run() -> None:
        childs.begin(os.getpid(), 2)
        childs.set_state(3)
        row = childs.row(2, "of the child")
        row.set(0, 1)
        written.open()
        go_on.wait()
        row.add(0, 1)

    pid = fork(run)
    written.wait()
    mine.row(2, "of the parent").set(0, 5)
    found = reader.read()
    assert (found[0].rows[0].label, found[0].rows[0].values[0]) == ("of the parent", 5)
    assert (found[1].pid, found[1].state, found[1].rows) == (pid, 3, (RowSnapshot(2, "of the child", values(1)),))
    go_on.open()
    assert join(pid) == 0
    assert reader.read()[1].rows == (RowSnapshot(2, "of the child", values(2)),)


def test_region_of_a_stopped_process_is_readable(
    page: CountersPage, reader: CountersPage, gates: tuple[Gate, Gate]
) -> None:
    """The same holds when it was stopped in the middle of changing a row, and of beginning its region."""
    inside, _ = gates
    writer = page.writer(0)
    writer.begin(1, 2)
    writer.row(2, "quiet").set(0, 1)

    def run() -> None:
        changing = writer.row(2, "half chan")
        changing.set(0, 2)
        with writer._lock, changing._lock:
            inside.open()
            signal.pause()

    pid = fork(run)
    inside.wait()
    os.kill(pid, signal.SIGSTOP)
    expected = (RowSnapshot(2, "quiet", values(1)), RowSnapshot(2, "half chan", values(2)))
    assert reader.read()[0] == RegionSnapshot(0, 1, 1, 0, 0, 2, expected)
    os.kill(pid, signal.SIGKILL)
    assert join(pid) == -signal.SIGKILL
    page.writer(0).begin(3, 4)
    assert reader.read()[0] == RegionSnapshot(0, 3, 2, 0, 0, 4, ())


def test_page_attached_is_read_only(page: CountersPage, reader: CountersPage) -> None:
    with pytest.raises(ShmError, match="for reading only"):
        reader.writer(0)
    with pytest.raises(ShmError, match="only its creator"):
        reader.unlink()
    with pytest.raises(TypeError, match="read-only"):
        reader._memory[0] = 1
    assert content(page.name)[:8] == b"QVCOUNTS"


@pytest.mark.parametrize("region", [-1, REGIONS])
def test_page_has_no_other_regions(page: CountersPage, region: int) -> None:
    with pytest.raises(ShmError, match="has regions 0 to 2"):
        page.writer(region)
    with pytest.raises(ShmError, match="has regions 0 to 2"):
        page.read_region(region)


def test_page_unlinked_cannot_be_attached_but_is_still_shared(page: CountersPage, reader: CountersPage) -> None:
    page.unlink()
    page.unlink()
    with pytest.raises(ShmError, match="does not exist"):
        CountersPage.attach(page.name)
    page.writer(0).set_state(3)
    assert reader.read()[0].state == 3


def test_page_is_not_unlinked_by_a_child(page: CountersPage) -> None:
    def run() -> None:
        with pytest.raises(ShmError, match="only its creator"):
            page.unlink()
        page.close()

    assert join(fork(run)) == 0
    CountersPage.attach(page.name).close()


def test_page_closed_refuses_every_use(page: CountersPage) -> None:
    writer = page.writer(0)
    page.close()
    page.close()
    for use in (page.read, lambda: page.read_region(0), lambda: page.writer(0)):
        with pytest.raises(ShmError, match="is closed"):
            use()
    writer.set_state(1)
    assert repr(page) == f"<CountersPage {page.name} regions=3 rows_per_region=4 closed>"


def test_page_name_in_use_is_refused_and_left_alone(page: CountersPage) -> None:
    with pytest.raises(ShmError, match="cannot be created"):
        CountersPage.create(page.name, 1, 1)
    CountersPage.attach(page.name).close()
