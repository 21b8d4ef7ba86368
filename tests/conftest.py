"""How the tests are handed out to several processes: a file at a time, and together the files that share one Spark session."""

from __future__ import annotations

from typing import Any

import pytest


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> object | None:
    if config.getvalue("dist") != "loadfile":
        return None
    from tests.support.handing_out import FilesTogether

    return FilesTogether(config, log)
