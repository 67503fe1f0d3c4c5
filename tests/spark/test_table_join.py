"""A stream is joined with a table of Spark."""

from __future__ import annotations

from typing import Any

import pytest

from penstock import GraphError, StreamExecutionEnvironment


def test_the_rows_of_a_data_frame_are_joined(spark: Any) -> None:
    frame = spark.createDataFrame([("a", "ann"), ("b", "bob")], "id string, name string")
    env = StreamExecutionEnvironment.get_execution_environment()
    records = env.from_collection([{"id": "a"}, {"id": "c"}, {"id": "b"}])
    named = records.join_table(frame, on="id", function=lambda record, row: row["name"])
    assert sorted(named.execute_and_collect(in_process=True)) == ["ann", "bob"]
    with pytest.raises(GraphError, match="cannot be loaded again"):
        records.join_table(frame, on="id", reload_every=1000)
