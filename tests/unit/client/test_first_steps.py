"""What a client says to somebody who holds it wrong for the first time."""

from __future__ import annotations

import asyncio
import pickle
import subprocess
import sys

import pytest

import quiver_actors
from quiver_actors import aio
from quiver_actors.client import Client
from quiver_actors.errors import UsageError


def test_the_package_shows_its_names_before_they_are_imported() -> None:
    program = (
        "import sys, quiver_actors\nassert {'connect', 'Client', 'Receipt'} <= set(dir(quiver_actors))\n"
        "assert 'pyarrow' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)
    assert set(quiver_actors.__all__) <= set(dir(quiver_actors))


def test_a_client_that_is_pickled_says_how_processes_share_a_node(client: Client) -> None:
    with pytest.raises(UsageError, match=r"quiver_actors\.connect\('.+'\)"):
        pickle.dumps(client)


def test_settings_as_arguments_are_answered_with_the_mapping(client: Client) -> None:
    with pytest.raises(UsageError, match=r"create_topic\('pages', \{'slots': \{'page': 0\}\}\)"):
        client.create_topic("pages", slots={"page": 0})


def test_the_asynchronous_client_says_the_same(client: Client) -> None:
    async def main() -> None:
        async with aio.connect(client.run_dir) as other:
            with pytest.raises(UsageError, match=r"quiver_actors\.connect\("):
                pickle.dumps(other)
            with pytest.raises(UsageError, match="one mapping by key"):
                await other.create_topic("pages", slots={"page": 0})

    asyncio.run(main())
