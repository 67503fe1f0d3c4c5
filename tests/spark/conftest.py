"""One Spark session per test module, with its tables in a folder of its own; how Java runs."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from penstock.connectors.spark.active_session import spark_session
from penstock.runtime.spark import barrier_stage, preflight
from tests.processes.harness import PATIENCE

#: A JVM of the tests lives for a minute and runs little of what it loads twice. So it is not worth
#: to compile that well, for which there are threads that would take the processors from the tests.
JAVA_OPTIONS = (
    "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC "
    "-XX:+UnlockDiagnosticVMOptions -XX:-BytecodeVerificationRemote"
)
# Read by Spark's scripts, also where a test starts a program that starts Spark.
for name in ("SPARK_SUBMIT_OPTS", "SPARK_LAUNCHER_OPTS"):
    os.environ.setdefault(name, JAVA_OPTIONS)
#: Settings of a session whose Python workers are forked from a process that has imported most.
WARM = {"spark.python.daemon.module": "tests.spark.warm_daemon"}
_ROOT = str(Path(__file__).resolve().parents[2])
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [_ROOT, os.environ.get("PYTHONPATH")]))


@pytest.fixture(scope="session", autouse=True)
def patience() -> Iterator[None]:
    """Workers may take as long to start as the slowest machine needs for it.

    Of the whole session, since the fixtures of modules wait for them, too.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(barrier_stage, "START_SECONDS", PATIENCE)
        patch.setattr(preflight, "SLOTS_SECONDS", PATIENCE)
        yield


@pytest.fixture(scope="module")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """A local session on two cores with an in-memory catalog. The JVM outlives it."""
    folder = tmp_path_factory.mktemp("spark")
    session = spark_session(
        {
            **WARM,
            "spark.sql.warehouse.dir": str(folder / "warehouse"),
            "spark.sql.shuffle.partitions": "2",
            "spark.sql.session.timeZone": "UTC",
            "spark.local.dir": str(folder / "local"),
            "spark.log.level": "ERROR",
        },
        app_name="penstock-tests",
    )
    yield session
    session.stop()
