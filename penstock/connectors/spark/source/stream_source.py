"""Read a Spark stream batch by batch, through `foreachBatch`.

The streaming query runs in the process of the program while the job runs (`query_runner.py`).
Each batch is pinned in the source's folder under its number (`batch_folder.py`), and the job's
readers read it from there (`pin_reader.py`). Spark's checkpoint lies beside the batches and
determines the rows of each batch. The job's snapshots record which batches were read, and up to
which row.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock.connectors.spark.active_session import require_spark
from penstock.connectors.spark.source.batch_folder import BatchFolder
from penstock.connectors.spark.source.pin import is_pin_id, load_pin, new_pin_id
from penstock.connectors.spark.source.pin_reader import PinReader, check_columns, splits_of
from penstock.connectors.spark.source.query_runner import StreamingQueryRunner
from penstock.connectors.spark.source.table_source import check_record_kind
from penstock.connectors.spark.spark_types import arrow_schema
from penstock.dataflow.errors import GraphError, JobError
from penstock.dataflow.source import (
    Preparation,
    ReaderContext,
    Source,
    SourceReader,
    Split,
    SplitEnumerator,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["SparkStreamSource"]


_ELSEWHERE = (
    "the snapshot is of another run of the stream than the one whose checkpoint is in this job's "
    "folder: resume the job in its own folder"
)


class SparkStreamSource(Source):
    """Reads each row of a Structured Streaming DataFrame once.

    The query starts when the job is executed, and stops when the job has ended. Its checkpoint is
    in the job's folder. Progress is recorded in both checkpoints together, so a job is resumed in
    its own folder. If the query fails, the job fails too; its restart strategy restarts it, and
    the query is restarted meanwhile. A batch is removed when no retained snapshot needs it. A job
    without snapshots keeps all batches to its end.

    Arguments:
        frame: a streaming DataFrame. It must be append-only (no aggregation without a
            watermark), since a batch must consist of new rows.
        columns: the columns to read, in this order; all by default, or the fields of `as_`.
        as_: the kind of record, as for `SparkTableSource`.
        trigger_seconds: least time between the beginnings of two batches; with 0, a batch begins
            as soon as there are new rows.
        available_now: whether to read the present rows, in several batches if necessary, and end.
        max_unread_batches: number of unread batches at which Spark waits before the next one.

    Raises:
        GraphError: if an argument is of the wrong kind, or if penstock[spark] is not installed.
    """

    def __init__(
        self,
        frame: DataFrame,
        *,
        columns: Sequence[str] | None = None,
        as_: str | type = "dict",
        trigger_seconds: float = 0.0,
        available_now: bool = False,
        max_unread_batches: int = 4,
    ) -> None:
        require_spark()
        from pyspark.sql import DataFrame

        if not isinstance(frame, DataFrame) or not frame.isStreaming:
            raise GraphError(
                f"a Spark stream source takes a streaming DataFrame (spark.readStream), not "
                f"{frame!r}; read a table with SparkTableSource"
            )
        if not hasattr(frame, "_jdf"):
            raise GraphError(
                "a stream of Spark Connect can't feed a job, since its batches are made in the "
                "server: use a session of this process"
            )
        if max_unread_batches < 1 or trigger_seconds < 0:
            raise GraphError(
                f"max_unread_batches is at least 1 and trigger_seconds at least 0, not "
                f"{max_unread_batches!r} and {trigger_seconds!r}"
            )
        self.columns, self.as_ = check_record_kind(columns, as_), as_
        schema = arrow_schema(frame.schema)
        names = check_columns(schema, self.columns)
        self._row_class: type | None = None
        if as_ == "row":
            from penstock.connectors.spark.record_decoding import row_class

            self._row_class = row_class(tuple(names))
        self._frame: DataFrame | None = frame
        self._trigger_seconds, self._available_now = trigger_seconds, available_now
        self._max_unread = max_unread_batches
        self._folder: Path | None = None
        self._stage_id: str | None = None
        self._query: StreamingQueryRunner | None = None

    def __getstate__(self) -> dict[str, Any]:
        """Return the attributes without those that exist only in the program's process."""
        return {**vars(self), "_frame": None, "_query": None}

    def prepare(self, preparation: Preparation) -> None:
        """Start the query."""
        if not preparation.attached:
            raise GraphError(
                "a Spark stream feeds a job only while the program runs: run it with "
                "`penstock run`, and not by submitting it"
            )
        assert self._frame is not None
        self._folder, state = preparation.folder, preparation.state
        if state is not None:
            # Errors are raised before a query starts whose batches no reader could read.
            self._stage_id = _known_stage(self._folder, state["stage"])
        elif preparation.resuming:
            self._stage_id = _newest_stage(self._folder)
        self._stage_id = self._stage_id or new_pin_id()
        stage = BatchFolder(self._folder / self._stage_id)
        stage.create()
        frame = self._frame
        if self.columns is not None:
            frame = frame.select(*("`" + c.replace("`", "``") + "`" for c in self.columns))
        self._query = StreamingQueryRunner(stage, frame, self._max_unread)
        self._query.start(self._trigger_seconds, self._available_now)

    def release(self) -> None:
        """Stop the query."""
        query, self._query = self._query, None
        if query is not None:
            query.stop()

    def create_enumerator(self, parallelism: int) -> SplitEnumerator:
        """Create an enumerator that hands out the splits of batches as these appear."""
        del parallelism
        return _StageEnumerator(self._folder, self._stage_id)

    def create_reader(self, context: ReaderContext) -> SourceReader:
        """Create a reader of the batches."""
        del context
        folder = None if self._folder is None else self._folder / str(self._stage_id)
        return PinReader(folder, self.columns, self._row_class or self.as_)


class _StageEnumerator(SplitEnumerator):
    """Hands out the splits of batches in order, as the batches appear.

    Arguments:
        folder: the source's own folder.
        stage_id: the name of the batch folder that the query of this run fills.
    """

    def __init__(self, folder: Path | None, stage_id: str | None) -> None:
        if folder is None or stage_id is None:
            raise GraphError(
                "the Spark stream was not started: this way of running a job does not prepare "
                "its sources in the program; use execute()"
            )
        self._stage_id = stage_id
        self._stage = BatchFolder(folder / stage_id)
        #: The current batch, or the lowest number of the next one; its splits if it is open.
        self._batch, self._split = 0, 0
        self._splits: list[Split] = []
        self._ended = False

    def start(self) -> None:
        removed = self._stage.removed
        if removed:
            raise JobError(
                f"the batches of the stream below {removed} were read by earlier snapshots of this "
                f"job and are removed, and it is not resumed from one of them: resume it from its "
                f"newest snapshot, or start it afresh in another folder"
            )
        self._stage.record_dealt(0)

    def next_split(self, subtask: int) -> Split | None:
        del subtask
        while not self._splits:
            if not self._next_batch():
                return None
        split = self._splits[self._split]
        self._go_on()
        return split

    def _next_batch(self) -> bool:
        """Open the next batch, if there is one."""
        # The end is read before the batches: the last batch appears before the end is reported.
        ended, failed = self._stage.reported("ended"), self._stage.reported("failed")
        number = next((n for n in self._stage.numbers() if n >= self._batch), None)
        if number is not None:
            self._open(number, 0)
            return True
        if failed is not None:
            raise JobError(f"the streaming query failed: {failed}")
        self._ended = ended is not None
        return False

    def _open(self, number: int, split: int) -> None:
        pin = load_pin(self._stage.batch(number))
        self._splits = splits_of(self._stage.name(number), pin)
        self._batch, self._split = number, split - 1
        self._go_on()

    def _go_on(self) -> None:
        """Advance to the next split, or to the next batch if this one has none left."""
        self._split += 1
        if self._split >= len(self._splits):
            self._batch, self._split, self._splits = self._batch + 1, 0, []
            self._stage.record_dealt(self._batch)

    @property
    def exhausted(self) -> bool:
        return self._ended

    def snapshot(self) -> Any:
        return {"stage": self._stage_id, "batch": self._batch, "split": self._split}

    def restore(self, state: Any) -> None:
        if state["stage"] != self._stage_id:
            raise GraphError(_ELSEWHERE)
        if state["split"]:
            self._open(state["batch"], state["split"])
        else:
            self._batch = state["batch"]
        self._stage.record_dealt(self._batch)

    def retain(self, states: Sequence[Any], begun: Sequence[Split]) -> None:
        needed = [state["batch"] for state in states if state["stage"] == self._stage_id]
        needed += [int(split.payload["pin"].rpartition("/")[2]) for split in begun]
        if needed:
            self._stage.remove_below(min(needed))


def _known_stage(folder: Path, stage_id: object) -> str:
    """Return the name of the batch folder that a snapshot names.

    Raises:
        GraphError: if it does not lie in the source's own folder. The snapshot may come from
            elsewhere, and batches are written to and removed from the folder that it names.
    """
    if isinstance(stage_id, str) and is_pin_id(stage_id):
        stage = folder / stage_id
        if stage.exists() and not stage.is_symlink() and not (stage / "batches").is_symlink():
            return stage_id
    raise GraphError(_ELSEWHERE)


def _newest_stage(folder: Path) -> str | None:
    found = sorted(path.parent.name for path in folder.glob("[!.]*/batches"))
    return found[-1] if found else None
