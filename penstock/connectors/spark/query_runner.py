"""Runs the streaming query of a source, and publishes its batches in a stage (`batch_folder.py`).

It lives in the process of the program, as long as the job does. A query that fails is begun
again. Spark's checkpoint and the stage belong together: Spark numbers its batches by the one, and
a number that is in the other is not written again. So a checkpoint that is not the one which the
batches were made with, or is older than they are, is refused: its new rows would be taken for old
ones.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock.connectors.spark.active_session import session_lives
from penstock.connectors.spark.batch_folder import BatchFolder
from penstock.connectors.spark.pin import make_pin, spark_path
from penstock.dataflow.errors import GraphError, JobError, StoreError
from penstock.snapshot.storage.filesystem.durable_files import sync_path

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.query import StreamingQuery

__all__ = ["StreamingQueryRunner"]

#: A failed query is started again after this many seconds, twice as many each time, up to …
FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 1.0, 30.0
#: How often a batch that must wait looks whether it still has to.
LOOK_SECONDS = 0.05
#: How long the end of a query is waited for that could not be told to stop.
FAREWELL_SECONDS = 10.0


class StreamingQueryRunner:
    """Runs the query, and publishes its batches.

    Arguments:
        stage: where to.
        frame: the stream.
        max_unread: how many batches may wait for a reader.
    """

    def __init__(self, stage: BatchFolder, frame: DataFrame, max_unread: int) -> None:
        self._stage = stage
        self._frame = frame
        self._max_unread = max_unread
        self._plans = _Plans(stage.checkpoint)
        self._stopping = threading.Event()
        self._watcher: threading.Thread | None = None
        #: Held while one query takes the other's place, so that `stop` stops the one that runs.
        self._changing = threading.Lock()
        self._query: StreamingQuery

    def start(self, trigger_seconds: float, available_now: bool) -> None:
        """Start the query and what watches it.

        Raises:
            GraphError: what Spark says against the stream.
            StoreError: if another program runs it, or its checkpoint does not fit its batches.
        """
        from pyspark.errors import PySparkException

        self._stage.lock()
        self._stage.unsay()
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
        """Stop the query; a batch under way is given up, and comes again when the job resumes."""
        self._stopping.set()
        try:
            if self._watcher is not None:
                with self._changing:
                    query = self._query
                self._watcher.join(None if _stopped(query) else FAREWELL_SECONDS)
        finally:
            self._stage.unlock()

    def _begin(self) -> StreamingQuery:
        self._plans.require(self._stage)
        writer = self._frame.writeStream.foreachBatch(self._publish)
        writer = writer.option("checkpointLocation", spark_path(self._stage.checkpoint))
        return writer.trigger(**self._trigger).start()

    def _publish(self, frame: DataFrame, number: int) -> None:
        """Publish a batch; called by Spark, in a thread of its own."""
        stage = self._stage
        if stage.has(number):
            return
        while stage.unread() >= self._max_unread:
            if self._stopping.wait(LOOK_SECONDS):
                raise JobError("the job has ended")  # so that Spark doesn't take it as done
        self._plans.make_durable(number)
        # Before the first batch: no batch is ever without what tells whose it is.
        stage.bind(self._plans.query)
        make_pin(frame, stage.batch(number), link=False)

    def _watch(self) -> None:
        """Tell the job how the query ended; start one that failed again."""
        pause = FIRST_PAUSE_SECONDS
        failure = self._wait()
        while failure is not None and not self._stopping.is_set():
            self._stage.say("failed", failure)
            if not session_lives(self._frame.sparkSession):
                # For good: the job fails until its restart strategy gives up.
                return
            if self._stopping.wait(pause):
                return
            pause = min(2 * pause, LONGEST_PAUSE_SECONDS)
            failure = self._run_again()
        if not self._stopping.is_set():
            self._stage.say("ended")

    def _run_again(self) -> str | None:
        """Start a query and wait for its end; what it failed with, if it did."""
        try:
            query = self._begin()
        except Exception as error:  # of Spark, of its connection, or of the checkpoint
            return str(error)
        with self._changing:
            self._query = query
            stopping = self._stopping.is_set()
        if stopping:
            # It came too late for `stop`, which has stopped the one before.
            _stopped(query)
            return None
        self._stage.unsay()
        return self._wait()

    def _wait(self) -> str | None:
        try:
            self._query.awaitTermination()
        except Exception as error:  # of Spark, or of its connection
            return str(error)
        return None


def _stopped(query: StreamingQuery) -> bool:
    """Stop a query; False if it cannot be told, as when its JVM is gone."""
    try:
        query.stop()
    except Exception:
        return False
    return True


class _Plans:
    """What Spark has written down of the batches of a query, in its checkpoint.

    Arguments:
        checkpoint: the query's checkpoint folder.
    """

    def __init__(self, checkpoint: Path) -> None:
        self._folder = checkpoint
        #: Files of the sources that were synced; they are never written again.
        self._synced: set[Path] = set()

    @property
    def query(self) -> str | None:
        """The id that Spark gave the query of this checkpoint; None if there is none."""
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
        """Raise `StoreError` if the batches of a stage were not made with this checkpoint."""
        numbers = stage.numbers()
        last = numbers[-1] if numbers else stage.removed - 1
        if last < 0:
            return  # there are none, and there never were
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
        """The newest batch whose content is planned; -1 if there is none."""
        # A batch is planned before it is run, and old plans are removed from the other end.
        names = [path.name for path in (self._folder / "offsets").glob("[0-9]*")]
        return max((int(name) for name in names if name.isdigit()), default=-1)

    def make_durable(self, number: int) -> None:
        """Sync what Spark has written about what is in a batch, which it doesn't do itself.

        If the machine went down and Spark forgot the plan of a batch that we have published, it
        would put other rows under its number, and they would never be read.
        """
        # With the files of checksums beside them: without its own, a file passes for damaged.
        plans = [self._folder / "offsets" / name for name in (str(number), f".{number}.crc")]
        plans += [self._folder / name for name in ("metadata", ".metadata.crc")]
        # A source names its files by a count of its own, some with a suffix.
        of_sources = {path for path in self._folder.glob("sources/*/*") if path.is_file()}
        _sync([*plans, *of_sources - self._synced])
        for folder in (self._folder / "sources", self._folder, self._folder.parent):
            with suppress(FileNotFoundError):
                sync_path(folder)
        self._synced = of_sources


def _sync(paths: Iterable[Path]) -> None:
    folders = set()
    for path in paths:
        # Spark removes old files, and temporary ones.
        with suppress(FileNotFoundError):
            sync_path(path)
            folders.add(path.parent)
    for folder in folders:
        sync_path(folder)
