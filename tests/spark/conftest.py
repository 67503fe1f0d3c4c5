"""One Spark session per test module, with its tables in a folder of its own."""

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from penstock.connectors.spark.session import spark_session


@pytest.fixture(scope="module")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """A local session on two cores with an in-memory catalog. The JVM outlives it."""
    folder = tmp_path_factory.mktemp("spark")
    session = spark_session(
        {
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
