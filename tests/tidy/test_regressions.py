"""Which test holds which lesson: the failures of the Rust implementation, and the format rules that other stores' bugs have taught.

A row names a weakness that was seen, and tests that fail if it comes back. The tests must exist.
"""

from __future__ import annotations

import ast
from functools import lru_cache

import pytest

from tests.tidy.test_layers import ROOT

ENGINE = "tests/unit/store/engine"
RUST = f"{ENGINE}/test_rust_regressions.py"

RUST_ROWS = {
    "sequences are used again after a restart of an emptied store": [
        f"{RUST}::test_numbers_are_not_reused_after_a_restart_of_an_emptied_store",
        f"{ENGINE}/test_numbers_without_core_file.py::test_numbers_are_not_used_twice",
    ],
    "a failed segment write followed by a good one loses data": [
        f"{RUST}::test_a_failed_seal_followed_by_a_good_one_loses_nothing"
    ],
    "log positions are wrong after a partial purge and a restart": [
        f"{RUST}::test_positions_stay_right_after_a_partial_purge_and_a_restart"
    ],
    "a schema that differs only in nullability poisons the log": [
        f"{RUST}::test_a_schema_that_differs_only_in_nullability_cannot_poison_the_log"
    ],
    "a read error leaks the claim until a restart": [
        f"{RUST}::test_a_reader_that_fails_does_not_keep_its_claims_from_others"
    ],
    "more than 65,536 bundles make a segment's progress unreadable": [
        f"{RUST}::test_a_full_progress_bitmap_seals_instead_of_overflowing"
    ],
    "switching from wal to segment_only breaks sealing": [
        f"{RUST}::test_switching_from_wal_to_segment_only_keeps_sealing"
    ],
    "acknowledged entries are lost on a plain abort": [
        f"{ENGINE}/test_engine.py::test_bundles_keep_the_ids_and_order_of_their_acknowledgement_across_a_kill",
        "tests/integration/test_client_failures.py::test_killed_worker_loses_nothing_that_was_acknowledged",
    ],
    "two processes open one directory": [f"{ENGINE}/test_engine.py::test_a_directory_opens_once"],
    "the next pending bundle is searched quadratically while claims are held": [
        "tests/unit/store/subscriber/test_watermark.py::test_claim_costs_the_same_while_100000_are_held"
    ],
    "segment and log are not told apart after a crash between them": [
        f"{RUST}::test_a_log_that_became_a_segment_is_not_replayed_again"
    ],
    "time is only looked at during ingest": [f"{RUST}::test_an_idle_open_segment_seals_by_itself"],
    "ingest during a seal races with the cursor": [
        f"{RUST}::test_bundles_that_come_during_a_seal_are_not_covered_by_its_cursor"
    ],
    "the limit of an entry is not enforced where it is written": [
        f"{RUST}::test_an_entry_over_the_limit_is_refused_before_it_is_written"
    ],
    "damage in one log file discards every later one": [
        f"{RUST}::test_damage_in_one_log_file_costs_its_own_bundles_only"
    ],
    "one deferred bundle blocks newer ones": [f"{RUST}::test_one_deferred_bundle_does_not_block_newer_ones"],
    "an orphaned subscriber holds the disk for ever": [
        "tests/integration/test_worker_delivery.py::test_orphan_ttl_drops_by_itself"
    ],
    "damaged segments stay on disk, outside the budget": [
        f"{RUST}::test_a_damaged_segment_goes_to_quarantine_and_is_announced",
        f"{ENGINE}/test_quarantine.py::test_an_engine_holds_to_its_cap",
    ],
    "progress is not flushed at shutdown": [f"{RUST}::test_progress_is_flushed_at_shutdown"],
}

FORMAT_ROWS = {
    "a record with a right checksum in the wrong place is believed": [
        f"{RUST}::test_an_entry_in_the_place_of_another_is_not_delivered_as_that_one"
    ],
    "zeroes are believed": ["tests/unit/store/wal/test_codecs.py::test_zeroes_are_no_file_of_ours"],
    "a flipped length eats the rest of the file": [
        "tests/unit/store/wal/test_reader.py::test_a_damaged_length_costs_only_its_entry",
        "tests/unit/store/wal/test_reader.py::test_a_length_that_points_behind_whole_entries_does_not_cost_them",
    ],
    "the log is cut to match a derived file": [
        "tests/unit/store/wal/test_decisions.py::test_the_cursor_and_a_clean_stop_never_decide_about_a_file"
    ],
    "damage with valid entries behind it is taken for the end": [
        "tests/unit/store/wal/test_reader.py::test_a_lost_stretch_of_several_entries_is_one_span",
        f"{ENGINE}/test_recovery_table.py::test_a_torn_end_is_cut_only_in_the_last_log",
    ],
    "what cannot be parsed is deleted": [
        "tests/unit/store/wal/test_decisions.py::test_what_cannot_be_parsed_is_dropped_only_as_a_torn_write_of_ours",
        f"{ENGINE}/test_quarantine.py::test_over_the_cap_the_oldest_go_and_never_the_newest",
    ],
    "a rename comes before the sync of the file, or no sync of the directory after it": [
        "tests/disks/test_monitor.py::test_naming_a_file_whose_bytes_are_not_synced_is_not",
        "tests/disks/test_monitor.py::test_an_acknowledgement_asks_for_synced_bytes_under_a_durable_name",
    ],
    "a sequence acknowledged before its sync is used again after a power loss": [
        f"{RUST}::test_a_power_loss_between_syncs_uses_no_number_again"
    ],
}


@lru_cache
def names_in(path: str) -> set[str]:
    tree = ast.parse((ROOT / path).read_text())
    return {node.name for node in tree.body if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")}


@pytest.mark.parametrize("lesson", [*RUST_ROWS, *FORMAT_ROWS])
def test_every_lesson_has_tests_that_exist(lesson: str) -> None:
    named = {**RUST_ROWS, **FORMAT_ROWS}[lesson]
    assert named
    missing = [test for test in named if test.partition("::")[2] not in names_in(test.partition("::")[0])]
    assert not missing


def test_every_test_of_the_lessons_is_in_a_row() -> None:
    rows = {test for tests in (*RUST_ROWS.values(), *FORMAT_ROWS.values()) for test in tests}
    assert {f"{RUST}::{test}" for test in names_in(RUST)} <= rows
