"""The default run directory of a node. Light: `quiver status` begins here."""

from __future__ import annotations

import os
from collections.abc import Mapping


def default_run_dir(environment: Mapping[str, str] | None = None) -> str:
    """`$QUIVER_RUN_DIR`, else `$XDG_RUNTIME_DIR/quiver`, else a directory of this user under the temporary directory."""
    env = os.environ if environment is None else environment
    if env.get("QUIVER_RUN_DIR"):
        return env["QUIVER_RUN_DIR"]
    if env.get("XDG_RUNTIME_DIR"):
        return os.path.join(env["XDG_RUNTIME_DIR"], "quiver")
    return os.path.join(env.get("TMPDIR", "/tmp"), f"quiver-{os.getuid()}")
