"""Keep the Spark session of a job, and replace it when its Java process has died."""

from __future__ import annotations

import contextlib
import os
import threading
from typing import TYPE_CHECKING, Any

from penstock.dataflow.errors import JobError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: The settings of a Spark session that `penstock run --master` creates.
SESSION_SETTINGS = {
    # An execution attempt must not run in a Python process that an earlier attempt has used.
    "spark.python.worker.reuse": "false",
    "spark.ui.showConsoleProgress": "false",
}

#: The settings that Spark sets for one session, which must not be copied to another session.
_PER_SESSION = ("spark.app.id", "spark.app.startTime", "spark.app.submitTime", "spark.driver.port")


class LiveSession:
    """Keeps a Spark session, and starts a new session if its JVM has died.

    Without a new session, every restart of the job would fail, although the job's snapshots are
    intact.

    Arguments:
        spark: a Spark session whose JVM is running.
    """

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark
        self._lock = threading.Lock()
        conf = spark.sparkContext.getConf().getAll()
        self._conf = {key: value for key, value in conf if key not in _PER_SESSION}

    def get(self) -> SparkSession:
        """Return the session. If its JVM has died, start a new one with the same settings.

        The call blocks. Raises `JobError` if a new session cannot be started.
        """
        with self._lock:
            if not _is_alive(self._spark):
                try:
                    self._spark = _replace(self._spark, self._conf)
                except Exception as error:
                    raise JobError(
                        f"the Java process of the Spark driver has died, and Spark cannot be "
                        f"started again: {error}"
                    ) from error
            return self._spark


def _is_alive(spark: SparkSession) -> bool:
    try:
        context: Any = spark.sparkContext._jsc.sc()
        return not context.isStopped()
    except Exception:
        return False


def _replace(dead: SparkSession, conf: dict[str, str]) -> SparkSession:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    if "PYSPARK_GATEWAY_PORT" in os.environ:
        raise JobError("it was started by spark-submit; run the program again with --resume")
    with contextlib.suppress(Exception):
        dead.stop()
    # If the JVM is dead, `stop` fails before it removes the gateway, so it is removed here.
    private: Any = SparkContext
    with contextlib.suppress(Exception):
        private._gateway.shutdown()
    with contextlib.suppress(Exception):
        private._gateway.proc.stdin.close()
    private._active_spark_context = private._gateway = private._jvm = None
    sessions: Any = SparkSession
    sessions._instantiatedSession = None
    builder: Any = SparkSession.builder
    for key, value in conf.items():
        builder = builder.config(key, value)
    session: SparkSession = builder.getOrCreate()
    return session
