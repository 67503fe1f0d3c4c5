"""Run the streaming query of a source, and publish its batches in a batch folder.

The query runs in the process of the program while the job runs. If the query fails, it is
restarted. Spark's checkpoint and the batch folder must match. Spark numbers the batches by its
checkpoint, and a batch whose number exists in the folder is not written again. With an older
checkpoint, Spark would give old numbers to new rows, and these rows would be lost. So a checkpoint
that does not belong to the batches, or is older than they are, is refused.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock.connectors.spark.active_session import session_lives
from penstock.connectors.spark.source.batch_folder import BatchFolder
from penstock.connectors.spark.source.pin_writer import make_pin, spark_path
from penstock.dataflow.errors import GraphError, JobError, StoreError
from penstock.snapshot.storage.filesystem.durable_files import sync_path

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.query import StreamingQuery

#: The first and the longest pause before a failed query is restarted, in seconds. The pause doubles
#: after each failure.
FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 1.0, 30.0
#: The interval at which a waiting batch checks whether it may be published, in seconds.
POLL_SECONDS = 0.05
#: The longest time to wait for the end of a query that could not be stopped, in seconds.
STOP_SECONDS = 10.0


class StreamingQueryRunner:
    """Runs the streaming query of a source, and publishes its batches in a batch folder.

    Arguments:
        stage: the batch folder.
        frame: the streaming DataFrame.
        max_unread: the largest number of batches that may wait for a reader.
    """

    def __init__(self, stage: BatchFolder, frame: DataFrame, max_unread: int) -> None:
        self._stage = stage
        self._frame = frame
        self._max_unread = max_unread
        self._plans = _Plans(stage.checkpoint)
        self._stopping = threading.Event()
        self._watcher: threading.Thread | None = None
        #: A lock that is held while `_query` is replaced, so that `stop` stops the current query.
        self._changing = threading.Lock()
        self._query: StreamingQuery

    def start(self, trigger_seconds: float, available_now: bool) -> None:
        """Start the query and a thread that waits for its end.

        Arguments:
            trigger_seconds: the least time between the beginnings of two batches, in seconds.
            available_now: whether the query ends after it has read the rows that now exist.

        Raises:
            GraphError: if Spark cannot run the stream.
            StoreError: if another program runs the query, or if Spark's checkpoint does not match
                the batches.
        """
        from pyspark.errors import PySparkException

        self._stage.lock()
        self._stage.withdraw_reports()
        self._trigger: dict[str, Any] = {"processingTime": f"{trigger_seconds} seconds"}
        if available_now:
            self._trigger = {"availableNow": True}
        try:
            self._query = self._begin()
        except PySparkException as error:
            raise GraphError(f"Spark cannot run the stream: {error}") from error
        self._watcher = threading.Thread(target=self._watch, name="spark-stream", daemon=True)
        self._watcher.start()

    def stop(self) -> None:
        """Stop the query. Spark repeats an incomplete batch when the job is resumed."""
        self._stopping.set()
        try:
            if self._watcher is not None:
                with self._changing:
                    query = self._query
                self._watcher.join(None if _stopped(query) else STOP_SECONDS)
        finally:
            self._stage.unlock()

    def _begin(self) -> StreamingQuery:
        self._plans.require(self._stage)
        writer = self._frame.writeStream.foreachBatch(self._publish)
        writer = writer.option("checkpointLocation", spark_path(self._stage.checkpoint))
        return writer.trigger(**self._trigger).start()

    def _publish(self, frame: DataFrame, number: int) -> None:
        """Publish a batch as a pin. Spark calls this method in one of its own threads."""
        stage = self._stage
        if stage.has(number):
            return
        while stage.unread() >= self._max_unread:
            if self._stopping.wait(POLL_SECONDS):
                raise JobError(
                    "the job has ended"
                )  # If this method returned instead, Spark would record the batch as complete.
        self._plans.make_durable(number)
        # The id of the query must be durable before the first batch is published.
        stage.record_query(self._plans.query)
        make_pin(frame, stage.batch(number), link=False)

    def _watch(self) -> None:
        """Wait for the end of the query, report it to the job, and restart a failed query."""
        pause = FIRST_PAUSE_SECONDS
        failure = self._wait()
        while failure is not None and not self._stopping.is_set():
            self._stage.report("failed", failure)
            if not session_lives(self._frame.sparkSession):
                # Without a session the query cannot be restarted. The report makes the job fail.
                return
            if self._stopping.wait(pause):
                return
            pause = min(2 * pause, LONGEST_PAUSE_SECONDS)
            failure = self._run_again()
        if not self._stopping.is_set():
            self._stage.report("ended")

    def _run_again(self) -> str | None:
        """Start the query again, wait until it ends, and return the error; None if it succeeded."""
        try:
            query = self._begin()
        except Exception as error:  # Spark, the connection to its JVM or the checkpoint failed.
            return str(error)
        with self._changing:
            self._query = query
            stopping = self._stopping.is_set()
        if stopping:
            # `stop` was called meanwhile and has stopped the previous query instead of this one.
            _stopped(query)
            return None
        self._stage.withdraw_reports()
        return self._wait()

    def _wait(self) -> str | None:
        try:
            self._query.awaitTermination()
        except Exception as error:  # Spark or the connection to its JVM failed.
            return str(error)
        return None


def _stopped(query: StreamingQuery) -> bool:
    """Stop a query, and return whether it was stopped.

    A query cannot be stopped if, for example, its JVM has ended.
    """
    try:
        query.stop()
    except Exception:
        return False
    return True


class _Plans:
    """The plans in Spark's checkpoint, which determine the rows of each batch of a query.

    Arguments:
        checkpoint: the folder of Spark's checkpoint.
    """

    def __init__(self, checkpoint: Path) -> None:
        self._folder = checkpoint
        #: The files of the query's sources that were synced. Spark never changes these files.
        self._synced: set[Path] = set()

    @property
    def query(self) -> str | None:
        """The id of the query in Spark's checkpoint; None if there is no checkpoint yet."""
        try:
            text = (self._folder / "metadata").read_text(encoding="utf-8")
            return str(json.loads(text.strip())["id"])
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise StoreError(
                f"Spark's checkpoint of the stream is damaged: {error}", self._folder / "metadata"
            ) from error

    def require(self, stage: BatchFolder) -> None:
        """Check that Spark's checkpoint belongs to the batches in a folder.

        Raises:
            StoreError: if another query wrote the batches, or if the checkpoint is older than the
                newest batch.
        """
        numbers = stage.numbers()
        last = numbers[-1] if numbers else stage.removed - 1
        if last < 0:
            return  # No batch was ever published, so any checkpoint is valid.
        query = self.query
        if query is None or stage.query not in (None, query):
            problem = "is not the one that the batches of the job were made with"
        elif self._newest() < last:
            problem = f"ends at batch {self._newest()}, and the job has batch {last} already"
        else:
            return
        raise StoreError(
            f"Spark's checkpoint of the stream {problem}: it was removed, replaced, or restored "
            f"from an older copy. New rows would be taken for those of old batches. Put it back, "
            f"or start the job afresh in another folder",
            self._folder,
        )

    def _newest(self) -> int:
        """Return the number of the newest batch that has a plan; -1 if there is none."""
        # Spark writes the plan of a batch before it runs the batch, and removes the oldest first.
        names = [path.name for path in (self._folder / "offsets").glob("[0-9]*")]
        return max((int(name) for name in names if name.isdigit()), default=-1)

    def make_durable(self, number: int) -> None:
        """Sync the files with Spark's plan of a batch to disk, because Spark does not.

        If a crash of the machine destroyed the plan of a published batch, Spark would write other
        rows under the same number. No reader would read these rows.
        """
        # The checksum files are synced too, because Spark refuses a file without its checksum.
        plans = [self._folder / "offsets" / name for name in (str(number), f".{number}.crc")]
        plans += [self._folder / name for name in ("metadata", ".metadata.crc")]
        # The names of the sources' files do not show their batch, so all new files are synced.
        of_sources = {path for path in self._folder.glob("sources/*/*") if path.is_file()}
        _sync([*plans, *of_sources - self._synced])
        for folder in (self._folder / "sources", self._folder, self._folder.parent):
            with suppress(FileNotFoundError):
                sync_path(folder)
        self._synced = of_sources


def _sync(paths: Iterable[Path]) -> None:
    folders = set()
    for path in paths:
        # Spark may remove old and temporary files at the same time.
        with suppress(FileNotFoundError):
            sync_path(path)
            folders.add(path.parent)
    for folder in folders:
        sync_path(folder)
