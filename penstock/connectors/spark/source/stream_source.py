"""Read a Spark stream batch by batch, through `foreachBatch`.

The streaming query runs in the process of the program while the job runs (`query_runner.py`). It
writes each batch to the source's folder under the number of the batch (`batch_folder.py`). The
readers of the job read the batches from this folder (`pin_reader.py`). Spark's checkpoint is in the
same folder and determines the rows of each batch. The job's snapshots record which batches were
read, and up to which row.
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

_ELSEWHERE = (
    "the snapshot is of another run of the stream than the one whose checkpoint is in this job's "
    "folder: resume the job in its own folder"
)


class SparkStreamSource(Source):
    """Reads each row of a Structured Streaming DataFrame once.

    The streaming query starts when the job is executed, and stops when the job has ended. Spark's
    checkpoint of the query is in the job's folder. The progress of the job is recorded partly in
    this checkpoint and partly in the job's snapshots. So a job must be resumed in its own folder.

    If the query fails, the job fails too. The restart strategy restarts the job, and the query is
    restarted separately. A batch is removed when no retained snapshot needs it. A job without
    snapshots keeps all batches until it ends.

    Arguments:
        frame: a streaming DataFrame. It must be append-only (no aggregation without a
            watermark), since a batch must consist of new rows.
        columns: the columns to read, in this order. By default, these are all columns, or the
            fields of the class `as_`.
        as_: the kind of record, as for `SparkTableSource`.
        trigger_seconds: the least time between the beginnings of two batches, in seconds. With 0,
            a batch begins as soon as there are new rows.
        available_now: whether to read only the rows that exist when the query starts, and then
            end. Spark may divide these rows into several batches.
        max_unread_batches: the number of unread batches at which Spark waits before it writes the
            next batch.

    Raises:
        GraphError: if an argument is not valid, or if penstock[spark] is not installed.

    Examples:
        >>> spark = spark_session()
        >>> folder = str(Path("numbers").absolute())
        >>> spark.range(3).write.parquet(folder)
        >>> stream = spark.readStream.schema("id BIGINT").parquet(folder)
        >>> source = SparkStreamSource(stream, as_="tuple", available_now=True)
        >>> sorted(env.from_source(source).execute_and_collect())
        [(0,), (1,), (2,)]
    """

    has_event_times = False

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

    @property
    def ends(self) -> bool:
        """Whether the query ends: it reads only the rows that exist at its start."""
        return self._available_now

    def __getstate__(self) -> dict[str, Any]:
        """Return the attributes to pickle: all except the objects bound to this process."""
        return {**vars(self), "_frame": None, "_query": None}

    def prepare(self, preparation: Preparation) -> None:
        """Start the streaming query in the process of the program."""
        if not preparation.attached:
            raise GraphError(
                "a Spark stream feeds a job only while the program runs: run it with "
                "`penstock run`, and not by submitting it"
            )
        assert self._frame is not None
        self._folder, state = preparation.folder, preparation.state
        if state is not None:
            # A wrong folder must be detected before the query starts and writes batches to it.
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
        """Stop the streaming query, if it runs."""
        query, self._query = self._query, None
        if query is not None:
            query.stop()

    def create_enumerator(self, parallelism: int) -> SplitEnumerator:
        """Create an enumerator that assigns the splits of each new batch to readers."""
        del parallelism
        return _StageEnumerator(self._folder, self._stage_id)

    def create_reader(self, context: ReaderContext) -> SourceReader:
        """Create a reader for the splits of batches."""
        del context
        folder = None if self._folder is None else self._folder / str(self._stage_id)
        return PinReader(folder, self.columns, self._row_class or self.as_)


class _StageEnumerator(SplitEnumerator):
    """Assigns the splits of the batches to readers, in the order of the batches.

    Arguments:
        folder: the source's own folder.
        stage_id: the name of the batch folder that the query of this run writes to.
    """

    def __init__(self, folder: Path | None, stage_id: str | None) -> None:
        if folder is None or stage_id is None:
            raise GraphError(
                "the Spark stream was not started: this way of running a job does not prepare "
                "its sources in the program; use execute()"
            )
        self._stage_id = stage_id
        self._stage = BatchFolder(folder / stage_id)
        #: The number of the open batch, or the lowest possible number of the next batch; then the
        #: index of the next split in the open batch.
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
        """Open the next batch if it exists, and return whether it does.

        Raises:
            JobError: if there is no next batch because the query has failed.
        """
        # The reports are read before the batches. The query publishes its last batch before it
        # reports its end, so no batch is missed.
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
        """Advance to the next split, or to the next batch after the last split."""
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
    """Check the name of a batch folder that was read from a snapshot, and return it.

    The snapshot may come from another job. The source writes and removes batches only in a batch
    folder inside its own folder.

    Raises:
        GraphError: if the source's own folder contains no such batch folder.
    """
    if isinstance(stage_id, str) and is_pin_id(stage_id):
        stage = folder / stage_id
        if stage.exists() and not stage.is_symlink() and not (stage / "batches").is_symlink():
            return stage_id
    raise GraphError(_ELSEWHERE)


def _newest_stage(folder: Path) -> str | None:
    found = sorted(path.parent.name for path in folder.glob("[!.]*/batches"))
    return found[-1] if found else None
