"""A table that is loaded again after some time, in a thread."""

from __future__ import annotations

import logging
from itertools import count
from typing import Any

import pytest

from penstock.dataflow.joins.operations import TableJoinOperation
from penstock.dataflow.joins.static_table import static_table
from penstock.runtime.operators.context import OperatorContext
from penstock.runtime.operators.joins.table_join import TableJoinOperator
from penstock.runtime.serialization.record_batch import RecordBatch
from tests.processes.harness import wait_until
from tests.runtime.operators.joins.harness import CODEC


class Versions:
    """Returns a new version of a table with each call, or fails."""

    def __init__(self) -> None:
        self.numbers = count()
        self.fails = False

    def __call__(self) -> Any:
        if self.fails:
            raise OSError("the file is being replaced")
        return {"a": next(self.numbers)}


def test_a_table_is_loaded_again_when_its_time_has_come(caplog: pytest.LogCaptureFixture) -> None:
    versions, now = Versions(), 0
    context = OperatorContext("join", "uid", 0, 1, 16, 0, CODEC, now_ms=lambda: now)
    table = static_table(versions, None, many=False)
    operation = TableJoinOperation(table, lambda r: r, lambda r, row: row, False, 1000)
    operator = TableJoinOperator(operation, context)
    operator.open()

    def version() -> int:
        (found,) = operator.process(RecordBatch(["a"])).rows()
        return int(found)

    assert version() == 0
    now = 999
    assert version() == 0
    now = 1000
    wait_until(lambda: version() == 1, "the new table is used")
    assert version() == 1
    versions.fails = True
    now = 2000
    with caplog.at_level(logging.WARNING):
        wait_until(lambda: version() == 1 and "could not load" in caplog.text, "the warning")
    assert "being replaced" in caplog.text
    versions.fails = False
    now = 3000
    wait_until(lambda: version() == 2, "the table after the failure")
