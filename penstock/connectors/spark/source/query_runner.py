"""Run the streaming query of a source, and publish its batches in a batch folder.

The query runs in the process of the program while the job runs; a query that fails is restarted.
Spark's checkpoint and the batch folder belong together. Spark numbers its batches by the
checkpoint, and a number that exists in the folder is not written again. So the checkpoint is
refused if it is not the one of these batches, or is older than they are: new rows under an old
number would be lost.
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

__all__ = ["StreamingQueryRunner"]

#: Pauses before a failed query is restarted, in seconds: the first, which doubles each time, and
#: the longest.
FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 1.0, 30.0
#: The interval at which a waiting batch checks whether it must still wait.
POLL_SECONDS = 0.05
#: The longest wait for the end of a query that could not be stopped.
STOP_SECONDS = 10.0


class StreamingQueryRunner:
    """Runs the query, and publishes its batches.

    Arguments:
        stage: the folder for the batches.
        frame: the stream.
        max_unread: number of batches that may wait for a reader.
    """

    def __init__(self, stage: BatchFolder, frame: DataFrame, max_unread: int) -> None:
        self._stage = stage
        self._frame = frame
        self._max_unread = max_unread
        self._plans = _Plans(stage.checkpoint)
        self._stopping = threading.Event()
        self._watcher: threading.Thread | None = None
        #: Held while one query replaces another, so that `stop` stops the query that runs.
        self._changing = threading.Lock()
        self._query: StreamingQuery

    def start(self, trigger_seconds: float, available_now: bool) -> None:
        """Start the query and the thread that watches it.

        Raises:
            GraphError: if Spark refuses the stream.
            StoreError: if another program runs the query, or if its checkpoint does not fit its
                batches.
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
        """Stop the query; an incomplete batch is repeated when the job is resumed."""
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
        """Publish a batch; Spark calls this in a thread of its own."""
        stage = self._stage
        if stage.has(number):
            return
        while stage.unread() >= self._max_unread:
            if self._stopping.wait(POLL_SECONDS):
                raise JobError(
                    "the job has ended"
                )  # otherwise Spark would record the batch as complete
        self._plans.make_durable(number)
        # This precedes the first batch, so that the query of every batch is known.
        stage.record_query(self._plans.query)
        make_pin(frame, stage.batch(number), link=False)

    def _watch(self) -> None:
        """Report to the job how the query ended; restart it if it failed."""
        pause = FIRST_PAUSE_SECONDS
        failure = self._wait()
        while failure is not None and not self._stopping.is_set():
            self._stage.report("failed", failure)
            if not session_lives(self._frame.sparkSession):
                # The failure is permanent: the job fails until its restart strategy gives up.
                return
            if self._stopping.wait(pause):
                return
            pause = min(2 * pause, LONGEST_PAUSE_SECONDS)
            failure = self._run_again()
        if not self._stopping.is_set():
            self._stage.report("ended")

    def _run_again(self) -> str | None:
        """Start a query and wait for its end; return the failure, if there was one."""
        try:
            query = self._begin()
        except Exception as error:  # from Spark, its connection or the checkpoint
            return str(error)
        with self._changing:
            self._query = query
            stopping = self._stopping.is_set()
        if stopping:
            # This query started too late for `stop`, which has stopped the previous one.
            _stopped(query)
            return None
        self._stage.withdraw_reports()
        return self._wait()

    def _wait(self) -> str | None:
        try:
            self._query.awaitTermination()
        except Exception as error:  # from Spark or its connection
            return str(error)
        return None


def _stopped(query: StreamingQuery) -> bool:
    """Stop a query; return False if that fails, for example because its JVM is gone."""
    try:
        query.stop()
    except Exception:
        return False
    return True


class _Plans:
    """Spark's records of the batches of a query, in its checkpoint.

    Arguments:
        checkpoint: the query's checkpoint folder.
    """

    def __init__(self, checkpoint: Path) -> None:
        self._folder = checkpoint
        #: Files of the sources that were synced; Spark never writes them again.
        self._synced: set[Path] = set()

    @property
    def query(self) -> str | None:
        """Return the id of the query in Spark's checkpoint; None without one."""
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
        """Raise `StoreError` if a folder's batches were not made with this checkpoint."""
        numbers = stage.numbers()
        last = numbers[-1] if numbers else stage.removed - 1
        if last < 0:
            return  # there are no batches, and there never were
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
        """Return the newest batch whose content is planned; -1 if there is none."""
        # A batch is planned before it runs. Plans are removed beginning with the oldest.
        names = [path.name for path in (self._folder / "offsets").glob("[0-9]*")]
        return max((int(name) for name in names if name.isdigit()), default=-1)

    def make_durable(self, number: int) -> None:
        """Sync Spark's plan of a batch, which Spark does not do.

        If the machine crashed and the plan of a published batch were lost, Spark would write other
        rows under the same number, and nothing would read them.
        """
        # The checksum files beside them are synced too: without one, a file counts as damaged.
        plans = [self._folder / "offsets" / name for name in (str(number), f".{number}.crc")]
        plans += [self._folder / name for name in ("metadata", ".metadata.crc")]
        # A source numbers its files by itself, and some have a suffix.
        of_sources = {path for path in self._folder.glob("sources/*/*") if path.is_file()}
        _sync([*plans, *of_sources - self._synced])
        for folder in (self._folder / "sources", self._folder, self._folder.parent):
            with suppress(FileNotFoundError):
                sync_path(folder)
        self._synced = of_sources


def _sync(paths: Iterable[Path]) -> None:
    folders = set()
    for path in paths:
        # Spark removes old and temporary files meanwhile.
        with suppress(FileNotFoundError):
            sync_path(path)
            folders.add(path.parent)
    for folder in folders:
        sync_path(folder)
