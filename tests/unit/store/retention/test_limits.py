"""The limits by which there is no room, and what an operator reads of them."""

import pytest

from quiver_actors.store.retention.limits import ROOM, Limit, NoRoom

KIB = 1024


def test_only_what_is_given_out_in_parts_leaves_room_again_without_a_new_measurement() -> None:
    given_out = (Limit.SIZE_CAP, Limit.CAP_SHARE)
    for limit in given_out:
        assert NoRoom(limit, 10, 7).leaves(3)
        assert not NoRoom(limit, 10, 7).leaves(4)
    assert not any(NoRoom(limit, 10, 0).leaves(1) for limit in Limit if limit not in given_out)


@pytest.mark.parametrize(
    ("met", "says"),
    [
        (NoRoom(Limit.MIN_FREE, 2 * KIB, KIB), "has 1.00 KiB free, and retention.min_free keeps 2.00 KiB"),
        (
            NoRoom(Limit.DISK, 0, KIB),
            "the file system is full, or a quota or the file size limit (ulimit -f) is met: 1.00 KiB are free",
        ),
        (NoRoom(Limit.SIZE_CAP, 2 * KIB, 3 * KIB), "uses 3.00 KiB of retention.size_cap = 2.00 KiB"),
        (NoRoom(Limit.CAP_SHARE, 2 * KIB, 3 * KIB), "uses 3.00 KiB of the 2.00 KiB that retention.cap_share gives"),
        (ROOM, "no limit was met"),
    ],
)
def test_a_limit_says_what_was_measured_and_which_setting_it_is(met: NoRoom, says: str) -> None:
    assert says in str(met)
