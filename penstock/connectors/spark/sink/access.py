"""Connect a committer in the JobManager to the Spark session whose catalog has a table.

The committer uses the first of these three that exists:

1. The session of this process, if the JobManager runs inside the driver.
2. The JVM of the user's program, through PySpark's gateway. This also works for an in-memory
   catalog and for an embedded Derby database, which a second JVM cannot open. The user's session
   sees new rows at once.
3. A new session in this process, if the program has ended and the catalog is a Hive metastore.

The secret of the gateway is stored in a file that only the user can read. It is never part of the
job's code.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock.connectors.spark.active_session import context_lives
from penstock.dataflow.errors import GraphError, JobError
from penstock.snapshot.storage.filesystem.temporary_folder import TemporaryFolder

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: A function that runs an SQL statement and returns the first column of each row. For `SET name`,
#: it returns the value of the setting.
Run = Callable[[str], list[str]]

#: The beginning of a statement that reads a setting. Such a statement takes 25 ms in Spark, so the
#: setting is read directly instead.
_SET = "SET "

#: The names, or beginnings of names, of the settings that determine a session's catalog.
_SETTINGS = (
    "spark.sql.catalogImplementation",
    "spark.sql.warehouse.dir",
    "spark.sql.hive.metastore.",
    "spark.hadoop.hive.metastore.",
    "spark.hadoop.javax.jdo.option.",
)
_SECRET = re.compile(r"(?i)secret|password|token|credential")


@dataclass(frozen=True)
class Access:
    """Connects to the Spark session of the user's program, also from another process.

    Arguments:
        door: the path of a file on the driver's machine. The file contains the port and the secret
            of PySpark's gateway.
        settings: the session's settings that determine its catalog, without secrets.
    """

    door: str
    settings: dict[str, str] = field(repr=False)

    @classmethod
    def of(cls, spark: SparkSession) -> Access:
        """Create the access to a session, and write its gateway's port and secret to a file.

        Raises:
            GraphError: if the session is a Spark Connect client.
        """
        require_jvm(spark)
        settings = {
            key: value
            for key, value in spark.sparkContext.getConf().getAll()
            if key.startswith(_SETTINGS) and not _SECRET.search(key)
        }
        return cls(_open_door(spark), settings)

    @contextlib.contextmanager
    def connect(self) -> Iterator[Run]:
        """Yield a function that runs SQL statements in Spark.

        Raises:
            JobError: if the user's program has ended and its catalog was in memory, if the JVM of
                this process has ended, or if a statement fails.
        """
        run = _own_session() or self._through_the_door() or self._new_session()

        def checked(statement: str) -> list[str]:
            try:
                return run(statement)
            except Exception as error:
                raise JobError(
                    f"Spark refused {_shortened(statement)}: {_first_line(error)}"
                ) from error

        yield checked

    def _through_the_door(self) -> Run | None:
        # py4j has no type information.
        from py4j.protocol import (  # type: ignore[import-untyped,unused-ignore]
            Py4JNetworkError,
        )

        try:
            gateway = _gateway(self.door)
        except OSError:
            return None  # The program has ended, or runs on another machine.
        try:
            session = gateway.jvm.org.apache.spark.sql.SparkSession.getDefaultSession()
            if session.isEmpty():
                return None
        except (Py4JNetworkError, OSError):
            # The program and its JVM were killed, so the file was not removed.
            _gateways.pop(self.door).close()
            return None

        def run(statement: str) -> list[str]:
            if statement.startswith(_SET):
                return [str(session.get().conf().get(statement.removeprefix(_SET)))]
            rows = session.get().sql(statement).collectAsList()
            return [str(rows.get(i).get(0)) for i in range(rows.size())]

        return run

    def _new_session(self) -> Run:
        if self.settings.get("spark.sql.catalogImplementation") != "hive":
            raise JobError(
                "the table's catalog was in the memory of the program that started the job, and "
                "that program is gone. What is staged stays: start the job again with --resume, "
                "with a program that creates the table again"
            )
        from penstock.connectors.spark.active_session import spark_session

        return runner(spark_session(self.settings, "local[1]", "penstock commits"))


#: The gateways that this process has opened, keyed by the path of their file. They are reused,
#: because py4j starts a thread for each gateway that never ends, and commits are frequent.
_gateways: dict[str, Any] = {}


def _gateway(door: str) -> Any:
    """Return the gateway whose port and secret are in a file.

    Raises:
        OSError: if the file does not exist or cannot be read.
    """
    from py4j.clientserver import (  # type: ignore[import-untyped,unused-ignore]
        ClientServer,
        JavaParameters,
        PythonParameters,
    )

    if door not in _gateways:
        port, secret = json.loads(Path(door).read_text(encoding="utf-8"))
        _gateways[door] = ClientServer(
            JavaParameters(port=port, auth_token=secret),
            PythonParameters(port=0, eager_load=False),
        )
    return _gateways[door]


def require_jvm(spark: SparkSession) -> None:
    """Check that the JVM of a session is a child of this process.

    Raises:
        GraphError: if the session is a Spark Connect client.
    """
    if not hasattr(spark, "sparkContext"):
        raise GraphError(
            "this table can't be written with a session of Spark Connect: its catalog is reached "
            "through the JVM of the program, and that one is elsewhere. Take a session of this "
            "process, SparkTableSink.at_path(…), or for an Iceberg table iceberg_catalog={…}"
        )


def runner(spark: SparkSession) -> Run:
    """Return a function that runs SQL statements in a Spark session of this process."""

    def run(statement: str) -> list[str]:
        if statement.startswith(_SET):
            return [str(spark.conf.get(statement.removeprefix(_SET)))]
        return [str(row[0]) for row in spark.sql(statement).collect()]

    return run


def _own_session() -> Run | None:
    if "pyspark" not in sys.modules:
        return None  # This process has not imported PySpark, so it has no session.
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    context = SparkContext._active_spark_context
    if context is None:
        return None
    if not context_lives(context):
        raise JobError(
            "the Java process of this program's Spark session has died, or the session was "
            "stopped, and so its catalog cannot be reached. What is staged stays: start the "
            "job again with --resume"
        )
    return runner(SparkSession.builder.getOrCreate())


def _open_door(spark: SparkSession) -> str:
    """Write the port and secret of PySpark's gateway to a temporary file, and return its path."""
    gateway: Any = spark.sparkContext._gateway
    folder = TemporaryFolder("spark")
    atexit.register(folder.remove)
    door = folder.path / "gateway"
    parameters = gateway.gateway_parameters
    descriptor = os.open(door, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        json.dump([parameters.port, parameters.auth_token], file)
    return str(door)


def _shortened(statement: str) -> str:
    return statement if len(statement) <= 200 else f"{statement[:200]}…"


def _first_line(error: Exception) -> str:
    java = getattr(error, "java_exception", None)
    try:
        text = str(java.getMessage()) if java is not None else str(error)
    except Exception:  # The JVM has ended, so the Java message cannot be read.
        text = str(error)
    return text.strip().split("\n", 1)[0]
