"""What dropping a subscriber frees, as the command says it before and after."""

from __future__ import annotations

from quiver_actors.base.protocol.messages import SegmentInfo, SubscriberInfo
from quiver_actors.base.units import MIB
from quiver_actors.cli.commands.drop_effect import effect_text, freed_bytes

SEGMENTS = {0: [SegmentInfo(seq, 10, 10, MIB, 0, 0) for seq in range(6)]}


def subscriber(name: str, oldest_segment_seq: int) -> SubscriberInfo:
    zeros = dict.fromkeys(SubscriberInfo.__struct_fields__, 0)
    return SubscriberInfo(**{**zeros, "subscriber": name, "oldest_segment_seq": oldest_segment_seq})  # type: ignore[arg-type]


def test_segments_that_only_this_one_needs_go_with_it() -> None:
    infos = {0: [subscriber("slow", 1), subscriber("fast", 4)]}
    assert freed_bytes("slow", infos, SEGMENTS) == 3 * MIB
    assert freed_bytes("fast", infos, SEGMENTS) == 0
    assert effect_text(3 * MIB) == "this frees 3.00 MiB or more"
    assert effect_text(0).startswith("this frees nothing now")


def test_one_that_has_everything_keeps_nothing_back_and_frees_nothing() -> None:
    infos = {0: [subscriber("slow", 2), subscriber("done", -1)]}
    assert freed_bytes("slow", infos, SEGMENTS) == 4 * MIB
    assert freed_bytes("done", infos, SEGMENTS) == 0


def test_the_last_subscriber_frees_nothing() -> None:
    freed = freed_bytes("alone", {0: [subscriber("alone", 0)], 1: []}, SEGMENTS)
    assert freed is None
    assert "a topic without subscribers keeps everything" in effect_text(freed)


def test_cores_are_added_up() -> None:
    infos = {core: [subscriber("slow", 0), subscriber("fast", core)] for core in (1, 2)}
    segments = dict.fromkeys((1, 2), SEGMENTS[0])
    assert freed_bytes("slow", infos, segments) == 3 * MIB
