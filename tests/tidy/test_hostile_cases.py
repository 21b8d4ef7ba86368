"""Which test holds which hostile act, and how many cases there are: at least as many as were asked for."""

from __future__ import annotations

import importlib
import inspect
import os
from math import prod

import pytest

from tests.tidy.test_layers import ROOT

CASES_MIN = 60
MUTATED_BUNDLES_MIN = 100_000
SUITE = "tests.security"
PLACES = "tests.integration.test_supervisor_refusals"
ACTS = {
    "squatting a directory or a socket": [
        f"{PLACES}::test_run_directory_of_another_user_is_refused",
        f"{PLACES}::test_run_directory_that_is_a_link_is_refused",
        f"{PLACES}::test_run_directory_that_others_can_write_is_refused",
    ],
    "a node in the victim's place": [
        f"{SUITE}.test_trust::test_a_directory_that_somebody_made_where_all_can_gets_nothing",
        f"{SUITE}.test_trust::test_whoever_took_the_place_of_a_socket_since_the_look_gets_nothing",
        f"{SUITE}.test_trust::test_a_directory_that_was_exchanged_since_the_look_gets_nothing",
        f"{SUITE}.test_trust::test_a_link_that_somebody_made_where_all_can_leads_nowhere",
        f"{SUITE}.test_trust::test_a_supervisor_of_somebody_else_is_asked_nothing",
    ],
    "names that lead elsewhere": [f"{SUITE}.test_requests::test_names_that_could_lead_elsewhere"],
    "sealed or shrunk memory": [f"{SUITE}.test_pushes::test_the_arena_can_be_neither_shrunk_nor_grown"],
    "mutated descriptors": [
        f"{SUITE}.test_pushes::test_rows_that_lie_are_refused_and_the_next_push_is_taken",
        f"{SUITE}.test_pushes::test_rows_of_a_wrong_length",
        f"{SUITE}.test_handshake::test_descriptors_that_a_client_sends_are_not_kept",
    ],
    "offsets past the arena": [
        f"{SUITE}.test_pushes::test_spans_outside_the_arena_end_the_connection",
        f"{SUITE}.test_pushes::test_ring_positions_that_were_never_reached_end_the_connection",
    ],
    "bytes that change after the check": [f"{SUITE}.test_pushes::test_bytes_that_change_while_they_are_checked"],
    "schema floods": [
        f"{SUITE}.test_requests::test_a_flood_of_schemas_ends_the_connection",
        f"{SUITE}.test_requests::test_a_flood_of_large_schemas_ends_the_connection",
    ],
    "floods of requests": [
        f"{SUITE}.test_floods::test_an_honest_producer_is_served_beside_a_flood",
        f"{SUITE}.test_floods::test_a_turn_takes_no_more_of_a_user_than_its_budget",
        f"{SUITE}.test_floods::test_the_heart_beats_between_the_portions_of_a_turn",
    ],
    "answers that nobody reads": [
        f"{SUITE}.test_floods::test_a_connection_to_which_many_answers_are_owed_is_not_read_from",
    ],
    "descriptors that are kept": [
        f"{SUITE}.test_held_segments::test_deleted_segments_that_another_user_keeps_are_emptied",
    ],
    "decompression bombs": [f"{SUITE}.test_pushes::test_decompression_bombs_are_refused_packed"],
    "handshakes that never end": [f"{SUITE}.test_handshake::test_handshakes_that_never_end_are_cut_off"],
    "mutated bundles": [f"{SUITE}.test_pushes::test_mutated_bundles_disturb_nobody"],
    "what is another's": [
        f"{SUITE}.test_rights_table::test_every_cell",
        f"{SUITE}.test_rights_client::test_every_cell",
        f"{SUITE}.test_rights_client::test_every_cell_about_topics",
        f"{SUITE}.test_rights_client::test_no_letter_is_written_once_the_guest_may_not_push_there_any_more",
    ],
    "quotas": [
        f"{SUITE}.test_handshake::test_connections_of_one_user_are_limited_and_others_get_in",
        f"{SUITE}.test_requests::test_shared_memory_of_one_user_is_limited",
        f"{SUITE}.test_requests::test_subscribers_of_one_user_are_limited",
        f"{SUITE}.test_requests::test_durable_subscribers_of_one_user_are_limited",
        f"{SUITE}.test_requests::test_there_is_room_for_the_owner_whatever_others_have_registered",
        f"{SUITE}.test_floods::test_memory_of_one_users_connections_is_limited",
        f"{SUITE}.test_floods::test_an_arena_that_another_user_keeps_takes_no_memory",
        f"{SUITE}.test_floods::test_there_is_always_room_for_the_own_user",
        f"{SUITE}.test_control_socket::test_topics_of_one_user_are_limited_and_its_own",
    ],
}


@pytest.mark.parametrize("act", ACTS)
def test_every_act_has_tests_that_exist(act: str) -> None:
    for test in ACTS[act]:
        module, _, name = test.partition("::")
        assert callable(getattr(importlib.import_module(module), name))


def test_there_are_enough_cases() -> None:
    modules = [f"{SUITE}.{path.stem}" for path in (ROOT / "tests" / "security").glob("test_*.py")]
    assert sum(map(cases_in, modules)) >= CASES_MIN


def cases_in(module: str) -> int:
    tests = inspect.getmembers(importlib.import_module(module), inspect.isfunction)
    return sum(cases_of(test) for name, test in tests if name.startswith("test_"))


def cases_of(test: object) -> int:
    marks = [mark for mark in getattr(test, "pytestmark", []) if mark.name == "parametrize"]
    return prod(len(list(mark.args[1])) for mark in marks)


@pytest.mark.skipif("MUTATED_BUNDLES" in os.environ, reason="somebody wants another number")
def test_enough_bundles_are_mutated() -> None:
    assert importlib.import_module(f"{SUITE}.test_pushes").MUTATIONS >= MUTATED_BUNDLES_MIN
