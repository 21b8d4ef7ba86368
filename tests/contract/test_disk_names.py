"""What every disk must do alike with names, directories and links."""

from __future__ import annotations

import errno

from quiver_actors.store.disk.protocol import Disk
from tests.contract.every_disk import content, failing, put


def test_a_missing_file_cannot_be_opened(disk: Disk) -> None:
    assert "nothing" in str(failing(disk, lambda: disk.open_read("nothing"), errno.ENOENT))
    failing(disk, lambda: disk.open_write("nothing"), errno.ENOENT)
    failing(disk, lambda: disk.rename("nothing", "b"), errno.ENOENT)
    assert not disk.exists("nothing")
    assert disk.allocated_bytes("nothing") == 0


def test_unlinking_a_missing_file_is_allowed(disk: Disk) -> None:
    disk.unlink("nothing")


def test_renaming_replaces_what_has_the_name(disk: Disk) -> None:
    put(disk, "a", b"new")
    put(disk, "b", b"old")
    disk.rename("a", "b")
    assert disk.list_directory(".") == ["b"]
    assert content(disk, "b") == b"new"


def test_renaming_to_itself_changes_nothing(disk: Disk) -> None:
    put(disk, "a", b"abc")
    disk.rename("a", "a")
    assert content(disk, "a") == b"abc"


def test_renaming_goes_across_directories(disk: Disk) -> None:
    disk.make_directory("one")
    disk.make_directory("two")
    put(disk, "one/a", b"abc")
    disk.rename("one/a", "two/b")
    assert (disk.list_directory("one"), disk.list_directory("two")) == ([], ["b"])
    assert content(disk, "two/b") == b"abc"


def test_a_renamed_directory_takes_along_what_is_in_it(disk: Disk) -> None:
    disk.make_directory("one/inner")
    put(disk, "one/inner/a", b"abc")
    disk.rename("one", "two")
    assert disk.list_directory(".") == ["two"]
    assert not disk.exists("one/inner/a")
    assert content(disk, "two/inner/a") == b"abc"
    disk.make_directory("one")
    assert disk.list_directory("one") == []


def test_of_two_that_link_to_a_name_the_first_has_it(disk: Disk) -> None:
    put(disk, "a", b"first")
    put(disk, "b", b"second")
    disk.link("a", "c")
    failing(disk, lambda: disk.link("b", "c"), errno.EEXIST)
    failing(disk, lambda: disk.link("nothing", "d"), errno.ENOENT)
    disk.unlink("a")
    assert disk.list_directory(".") == ["b", "c"]
    assert content(disk, "c") == b"first"


def test_both_names_of_a_file_show_what_is_written_to_it(disk: Disk) -> None:
    put(disk, "a", b"abc")
    disk.link("a", "b")
    file = disk.open_write("a")
    file.write([b"XY"], 0)
    file.close()
    assert content(disk, "b") == b"XYc"


def test_what_is_created_under_a_name_that_is_taken_is_another_file(disk: Disk) -> None:
    """One whose sync has failed is never written again, also where it could not be removed then."""
    put(disk, "a", b"before")
    former = disk.open_read("a")
    put(disk, "a", b"now")
    assert content(disk, "a") == b"now"
    assert former.read(6, 0) == b"before"
    former.close()
    disk.open_write("a").make_read_only()
    failing(disk, lambda: disk.create("a"), errno.EACCES)
    assert content(disk, "a") == b"now"


def test_a_name_in_a_missing_directory_is_refused(disk: Disk) -> None:
    put(disk, "a", b"abc")
    failing(disk, lambda: disk.create("missing/b"), errno.ENOENT)
    failing(disk, lambda: disk.rename("a", "missing/b"), errno.ENOENT)
    failing(disk, lambda: disk.link("a", "missing/b"), errno.ENOENT)
    failing(disk, lambda: disk.sync_directory("missing"), errno.ENOENT)
    assert content(disk, "a") == b"abc"


def test_a_file_is_no_directory_and_a_directory_no_file(disk: Disk) -> None:
    put(disk, "file", b"")
    disk.make_directory("directory")
    failing(disk, lambda: disk.create("file/a"), errno.ENOTDIR)
    failing(disk, lambda: disk.sync_directory("file"), errno.ENOTDIR)
    failing(disk, lambda: disk.list_directory("file"), errno.ENOTDIR)
    failing(disk, lambda: disk.create("directory"), errno.EISDIR)
    failing(disk, lambda: disk.open_write("directory"), errno.EISDIR)
    failing(disk, lambda: disk.unlink("directory"), errno.EISDIR)
    failing(disk, lambda: disk.rename("file", "directory"), errno.EISDIR)


def test_directories_are_made_with_their_parents_and_again(disk: Disk) -> None:
    disk.make_directory("a/b/c")
    disk.make_directory("a/b/c")
    disk.make_directory("a/b/d")
    assert disk.list_directory("a") == ["b"]
    assert disk.list_directory("a/b") == ["c", "d"]
    assert disk.exists("a/b/c")
    disk.sync_directory("a/b")


def test_a_directory_that_needs_its_parent_is_not_made_without_it(disk: Disk) -> None:
    failing(disk, lambda: disk.make_directory("a/b", needs_parent=True), errno.ENOENT)
    assert not disk.exists("a")
    disk.make_directory("a", needs_parent=True)
    disk.make_directory("a/b", needs_parent=True)
    disk.make_directory("a/b", needs_parent=True)
    assert disk.list_directory("a") == ["b"]


def test_listing_is_sorted_and_shows_one_level(disk: Disk) -> None:
    disk.make_directory("d/e")
    for name in ("d/b", "d/a", "d/e/deeper"):
        put(disk, name, b"")
    assert disk.list_directory("d") == ["a", "b", "e"]
    assert disk.list_directory("missing") == []
