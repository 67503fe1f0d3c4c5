"""The operator that joins a stream with a static table."""

from __future__ import annotations

import logging
from threading import Thread
from typing import Any

from penstock.dataflow.functions import method_of
from penstock.dataflow.joins.operations import TableJoinOperation
from penstock.runtime.operators.base import RecordLoopOperator, RunningOperator
from penstock.runtime.operators.context import OperatorContext
from penstock.runtime.operators.joins import table_loops as loops
from penstock.runtime.operators.joins.key_comparison import KeyComparison
from penstock.runtime.operators.two_inputs.operator import TwoInputOperator
from penstock.runtime.serialization.record_batch import EMPTY, RecordBatch
from penstock.snapshot.state import MISSING

_LOGGER = logging.getLogger("penstock")
_SIDES = "stream", "table"


class TableJoinOperator(RecordLoopOperator):
    """Joins each record with the row of its key in a table.

    The table is loaded when the operator opens. Snapshots do not contain it. If the join reloads
    its table periodically, a thread loads it, and the next batch uses the new table.

    Arguments:
        operation: the table, and how records are joined with it.
        context: the operator's place in the job.
    """

    def __init__(self, operation: TableJoinOperation, context: OperatorContext) -> None:
        super().__init__(operation.function, context)
        self._operation = operation
        self._key_of = method_of(operation.key_selector, "get_key")
        self._probe = context.mutability_probe()

    def open(self) -> None:
        """Open the function, and load the table."""
        operation, many = self._operation, self._operation.table.many
        super().open()
        self._default: Any = MISSING
        if many or operation.keep_unmatched:
            self._default = (None,) if many else None
            if not operation.keep_unmatched:
                self._default = ()
        self._set_timed_loop(
            loops.join_rows if many else loops.join_row,
            key_of=self._key_of,
            function=method_of(self.function, "join"),
        )
        self._keys = KeyComparison(self.name, _SIDES)
        self._loading: _Loading | None = None
        self.reload()

    def close(self) -> None:
        """Close the function."""
        super().close()

    def reload(self) -> None:
        """Load the table again, and wait until it is loaded."""
        self._use(self._operation.table.load())

    def process(self, batch: RecordBatch) -> RecordBatch:
        """Join the records of a batch, and return the results."""
        if self._due is not None:
            self._reload_if_due(self._due)
        out = self._process_with_loop(batch, self._table.get, self._default, self._probe)
        if self._keys.are_unknown(0) and not self._keys.are_unknown(1):
            self.iterator = None  # the message names both keys, and no record
            self._keys.compare(0, self._key_of, batch.rows())
        return out

    def _use(self, table: dict[Any, Any]) -> None:
        self._table = table
        interval = self._operation.reload_ms
        #: The time at which the table is loaded again, in milliseconds since the epoch; None for
        #: never.
        self._due = None if interval is None else self.context.now_ms() + interval
        if self._keys.are_unknown(1):
            self._keys.compare(1, _same, table)

    def _reload_if_due(self, due: int) -> None:
        loading = self._loading
        if loading is None:
            if self.context.now_ms() >= due:
                self._loading = _Loading(self._operation)
        elif not loading.is_alive():
            self._loading = None
            if loading.error is not None:
                # A file cannot be read at the moment when another program replaces it.
                _LOGGER.warning(
                    "operator %r could not load %s again, and continues with the rows that it has: "
                    "%s",
                    self.name,
                    self._operation.table.name,
                    loading.error,
                )
            self._use(self._table if loading.table is None else loading.table)


class _Loading(Thread):
    """A thread that loads a table.

    Arguments:
        operation: the join that needs the table.
    """

    def __init__(self, operation: TableJoinOperation) -> None:
        super().__init__(name="table of a join", daemon=True)
        self._operation = operation
        self.table: dict[Any, Any] | None = None
        self.error: Exception | None = None
        self.start()

    def run(self) -> None:
        """Load the table, and keep the table or the error."""
        try:
            self.table = self._operation.table.load()
        except Exception as error:
            self.error = error


class ReloadingTableJoinOperator(TwoInputOperator):
    """Joins the first stream with a table. A record of the second stream reloads the table.

    Arguments:
        operation: the table, and how records are joined with it.
        context: the operator's place in the job.
    """

    def __init__(self, operation: TableJoinOperation, context: OperatorContext) -> None:
        self._join = TableJoinOperator(operation, context)
        super().__init__(operation.function, context, self._join, _ReloadSide(self._join))

    def open(self) -> None:
        """Open the function, and load the table."""
        self._join.open()

    def close(self) -> None:
        """Close the function."""
        self._join.close()


class _ReloadSide(RunningOperator):
    """The input whose records are commands to load the table again.

    Arguments:
        join: the operator that joins records with the table.
    """

    def __init__(self, join: TableJoinOperator) -> None:
        super().__init__(None, join.context)
        self._join = join

    def process(self, batch: RecordBatch) -> RecordBatch:
        """Load the table again, once for a batch of commands."""
        del batch
        self.iterator = None
        self._join.reload()
        return EMPTY


def _same(key: Any) -> Any:
    return key
