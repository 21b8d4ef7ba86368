"""Which locations are used through conditional puts, and what messages show of the others."""

from __future__ import annotations

import pytest

from quiver_actors.base.file_systems import open_uri, shown
from quiver_actors.store.objects.locations import goes_by_store
from quiver_actors.store.objects.opening import check_url


@pytest.mark.parametrize(
    "url", ["s3://bucket", "s3a://b/ck/_quiver_decisions", "gs://b/a=b/", "az://c/x", "abfs://c/x"]
)
def test_plain_urls_are_for_conditional_puts(url: str) -> None:
    check_url(url)
    assert goes_by_store(url)


@pytest.mark.parametrize(
    "location",
    [
        "/a/path",
        "s3://bucket/log?region=eu",
        "s3://key:secret@bucket/log",
        "s3://bucket/a%20b",
        "s3://bucket//log",
        "hdfs:///log",
        "file:///log",
        "memory://log",
        "abfss://container@account.dfs.core.windows.net/log",
    ],
)
def test_all_others_are_for_paths_and_arrow(location: str) -> None:
    """What two libraries could understand differently must not be one log to the one and another to the other."""
    assert not goes_by_store(location)


def test_messages_show_no_passwords_and_options() -> None:
    assert shown("s3://key:secret@bucket/a/b?session_token=x#y") == "s3://bucket/a/b"
    assert shown("abfss://container@account/a") == "abfss://container@account/a"
    assert shown("/a/path?with#marks") == "/a/path?with#marks"
    with pytest.raises(OSError, match="nosuch://host/a is not") as raised:
        open_uri("nosuch://key:secret@host/a?token=hidden")
    assert "secret" not in str(raised.value)
    assert "hidden" not in str(raised.value)
