"""The bundle of a lone push is shown and claimed at once only where nothing comes in front of it, and nobody else is owed it."""

from __future__ import annotations

from tests.disks.simulated import SimDisk
from tests.support.engine_driver import EngineDriver, numbered_batch
from tests.unit.store.engine.test_lone_pushes import take
from tests.unit.store.engine.test_readable_order import SETTINGS, finish, run_until_pushes_fit, two_sealed_bundles

OWNER = "owner"


def caught_up(bundles: int = 6) -> EngineDriver:
    """An engine whose only subscriber holds all bundles of the open log."""
    driver = EngineDriver(SimDisk(), SETTINGS)
    driver.engine.registrations.register("s", "earliest")
    for number in range(bundles):
        driver.push_numbered(number)
        driver.commit()
        assert driver.claim_numbers("s") == [number]
    return driver


def stored_alone(driver: EngineDriver, number: int) -> None:
    """Push a bundle alone, and make it durable; nobody is shown it yet."""
    commit = take(driver, numbered_batch(number))
    assert commit is not None
    commit.run()
    driver.engine.group_commit.finish_lone()


def shown_to(driver: EngineDriver, subscriber: str) -> int | None:
    """The index of the bundle that is shown and claimed; None: it takes the general way."""
    log = driver.engine._parts.logs.active
    assert log is not None
    live = driver.engine.readable_end.show_to(log, subscriber, OWNER)
    return None if live is None else live.start


def test_it_goes_to_the_only_subscriber_and_its_place_is_where_the_general_way_says() -> None:
    driver = caught_up()
    stored_alone(driver, 6)
    assert shown_to(driver, "s") == 6
    readable = driver.engine.readable_end
    assert readable.advance() == [], "it is shown"
    assert readable.shown_count(0) == 7
    assert driver.claim_numbers("s") == []
    driver.seal()
    grant = driver.engine.claims.held("s", OWNER)
    assert grant[0] == 7
    assert driver.read(0).bundle(6)[0].column(0)[0].as_py() == 6


def test_it_is_not_shown_before_its_sync_nor_twice() -> None:
    driver = caught_up()
    assert shown_to(driver, "s") is None, "nothing is new"
    commit = take(driver, numbered_batch(6))
    assert commit is not None
    assert shown_to(driver, "s") is None, "it is not synced"
    commit.run()
    driver.engine.group_commit.finish_lone()
    driver.push_numbered(7)
    assert shown_to(driver, "s") is None, "another one was pushed meanwhile"
    driver.commit()
    assert shown_to(driver, "s") is None, "both are shown"
    assert driver.claim_numbers("s") == [6, 7]


def test_where_another_subscriber_is_owed_it_both_get_it() -> None:
    driver = caught_up()
    driver.engine.registrations.register("other", "latest")
    stored_alone(driver, 6)
    assert shown_to(driver, "s") is None
    assert shown_to(driver, "nobody") is None
    driver.engine.readable_end.advance()
    assert (driver.claim_numbers("s"), driver.claim_numbers("other")) == ([6], [6])


def test_a_subscriber_that_comes_later_is_owed_what_was_not_resolved_by_its_start() -> None:
    driver = caught_up()
    stored_alone(driver, 6)
    assert shown_to(driver, "s") == 6
    driver.engine.registrations.register("other", "earliest")
    assert driver.claim_numbers("other") == list(range(7))


def test_it_waits_for_the_check_of_an_older_segment_that_the_subscriber_is_owed() -> None:
    driver = two_sealed_bundles(SimDisk())
    driver.engine.registrations.unregister("through")
    checks = run_until_pushes_fit(driver)
    for number in range(2, 8):
        driver.push_numbered(number)
        driver.commit()
        driver.engine.claims.claim_ref("behind", OWNER, 1024, number - 2)
    stored_alone(driver, 8)
    assert shown_to(driver, "behind") is None
    finish(driver, checks)
    driver.engine.readable_end.advance()
    assert driver.claim_numbers("behind") == [0, 1, 8]
