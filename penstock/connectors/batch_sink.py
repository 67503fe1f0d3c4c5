"""The bases of sinks that write batches: `BatchSink` and `TransactionalSink`."""

from __future__ import annotations

import hashlib
import re
import threading
from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from penstock.dataflow.sink import Committable, Committer, Sink, SinkWriter, WriterContext
from penstock.dataflow.type_variables import T_contra

#: The form of the keys of new batches.
_KEY_VERSION = 2


@dataclass(frozen=True)
class Batch:
    """Identifies a batch of records. No two batches of a sink are equal.

    Arguments:
        lineage: the id of the lineage of the run's snapshots.
        uid: the uid of the sink's operator.
        subtask: the index of the subtask that has written it.
        attempt: the number of the execution attempt that has written it.
        number: the number of the batch in this subtask and attempt, from 0.
        payload: the value that `flush` has returned for it.
        key_version: the form of `key` when the batch was written. Snapshots of Penstock 0.1 have
            batches with keys of form 1.

    Examples:
        >>> batch = Batch("1f3b", "table", subtask=0, attempt=1, number=7)
        >>> batch.number
        7
    """

    lineage: str
    uid: str
    subtask: int
    attempt: int
    number: int
    payload: Any = field(default=None, compare=False)
    key_version: int = field(default=_KEY_VERSION, compare=False, repr=False)

    @property
    def key(self) -> str:
        """A string that no other batch of any job has: the same each time a commit is repeated.

        It can be the primary key in a table of commits that several sinks and jobs share, and it
        can be a part of a file's name: it has only letters, digits, `_` and `-`, and at most 120
        characters.
        """
        if self.key_version == 1:
            return f"{self.lineage}/{self.uid}/{self.attempt}/{self.subtask}/{self.number}"
        return f"{self.prefix(self.lineage, self.uid)}{self.attempt}-{self.subtask}-{self.number}"

    @staticmethod
    def prefix(lineage: str, uid: str) -> str:
        """Return the beginning of the keys of all batches of one sink.

        The rest of a key is the attempt, the subtask and the number, with `-` between them.

        Arguments:
            lineage: the id of the lineage of the run's snapshots.
            uid: the uid of the sink's operator, which may have any characters.
        """
        name = re.sub(r"[^A-Za-z0-9]+", "_", uid)[:40]
        digest = hashlib.blake2b(uid.encode(errors="surrogatepass"), digest_size=8).hexdigest()
        return f"{lineage}-{name}-{digest}-"


class BatchSink(Sink[T_contra]):
    """A sink that writes its records in batches, at least once.

    The sink gathers records, and passes them to `flush` at the barrier of each snapshot, or earlier
    if there are `max_records` of them. After a failure, records since the last snapshot are written
    again, in batches of other sizes. The result is exactly once if writing a record twice has the
    same effect as writing it once. So write by key: for example, replace a row or put an object.

    The sink is sent to the workers, so its `__init__` opens no connections.

    Attributes:
        max_records: the number of records at which a batch is written before the barrier.

    Examples:
        >>> class Table(BatchSink):
        ...     def flush(self, records, batch):
        ...         print("REPLACE", records)
        >>> _ = env.from_collection([("ann", 1), ("bob", 2)]).sink_to(Table())
        >>> _ = env.execute("table")
        REPLACE [('ann', 1), ('bob', 2)]
    """

    max_records: int = 10_000

    @abstractmethod
    def flush(self, records: list[T_contra], batch: Batch) -> Any:
        """Write a batch. It must be durable when this method returns.

        At a barrier, the engine calls this method in a thread. In each worker, only one thread at a
        time calls `flush`. The method must not change the records. If it raises an exception, the
        job restarts from its last snapshot, and writes again. A `JobError` with the recoverability
        `NON_RECOVERABLE` ends the job.

        Returns:
            A value for `TransactionalSink.commit`; other sinks return None.
        """

    def open(self, context: WriterContext) -> None:
        """Prepare to write, in a worker. It is called before the first `flush`."""

    def close(self) -> None:
        """Release the resources of this worker."""

    def create_writer(self, context: WriterContext) -> SinkWriter:
        """Return a writer that gathers the records of one subtask."""
        return _BatchWriter(self, context, committed=False)


class TransactionalSink(BatchSink[T_contra]):
    """A sink that writes its records in batches, exactly once, by a two-phase commit.

    `flush` stages a batch where no reader sees it. When the snapshot is complete, `commit`
    publishes the batches. After a failure, `commit` is called again for batches whose commit is
    not confirmed, so it must find out which batches are already published. For example, it can
    write each `Batch.key` to a table, in the same transaction as the records. Batches that belong
    to no snapshot are never committed; `discard` removes them.

    The workers call `flush`, and the JobManager calls `commit` and `discard`. Each of these
    processes has its own copy of the sink.

    Examples:
        >>> class Table(TransactionalSink):
        ...     def flush(self, records, batch):
        ...         return records  # staged with the batch
        ...     def commit(self, batches):
        ...         for batch in batches:
        ...             print("INSERT", batch.payload)
        ...     def discard(self, lineage, uid, keep):
        ...         pass
        >>> _ = env.from_collection([1, 2]).sink_to(Table())
        >>> _ = env.execute("table")
        INSERT [1, 2]
    """

    exactly_once = True

    @abstractmethod
    def commit(self, batches: list[Batch]) -> None:
        """Publish batches in their order, unless they are published already."""

    def discard(self, lineage: str, uid: str, before_attempt: int) -> int:
        """Remove staged batches that are not published, and return their number.

        The engine calls this method when all output of all snapshots is published.

        Arguments:
            lineage: the id of the lineage of the run's snapshots.
            uid: the uid of the sink's operator. Batches of other sinks must not be removed.
            before_attempt: the number of an attempt. Only batches of earlier ones are removed.
        """
        del lineage, uid, before_attempt
        return 0

    def create_writer(self, context: WriterContext) -> SinkWriter:
        """Return a writer that gathers the records of one subtask."""
        return _BatchWriter(self, context, committed=True)

    def create_committer(self) -> Committer:
        """Return a committer that calls `commit` and `discard`."""
        return _BatchCommitter(self)


class _BatchWriter(SinkWriter):
    """Gathers records, and writes them in batches.

    Arguments:
        sink: the sink.
        context: the place of the writer in the job.
        committed: whether the batches are committed later.
    """

    def __init__(self, sink: BatchSink, context: WriterContext, *, committed: bool) -> None:
        self._sink, self._context, self._committed = sink, context, committed
        self._records: list[Any] = []
        self._batches = 0
        #: The batches that were written since the last barrier, as payloads of committables.
        self._written: list[Any] = []
        self._flushing = threading.Lock()

    def open(self) -> None:
        self._sink.open(self._context)

    def write(self, batch: list[Any]) -> None:
        self._records += batch
        if len(self._records) >= self._sink.max_records:
            records, self._records = self._records, []
            self._written.append(self._flush(records, self._next()))

    def prepare(self, snapshot: int) -> Callable[[], list[Any]] | None:
        del snapshot
        records, self._records = self._records, []
        written, self._written = self._written, []
        if not records and not written:
            return None
        number = self._next() if records else 0

        def finish() -> list[Any]:
            payloads = [*written, self._flush(records, number)] if records else written
            return payloads if self._committed else []

        return finish

    def close(self) -> None:
        self._sink.close()

    def _next(self) -> int:
        self._batches += 1
        return self._batches - 1

    def _flush(self, records: list[Any], number: int) -> Any:
        ctx = self._context
        batch = Batch(ctx.lineage, ctx.uid, ctx.subtask, ctx.attempt, number)
        # The flush for a barrier runs in a thread. Meanwhile the task may flush the next batch.
        with self._flushing:
            payload = self._sink.flush(records, batch)
        return {"number": number, "payload": payload, "key_version": batch.key_version}


class _BatchCommitter(Committer):
    def __init__(self, sink: TransactionalSink) -> None:
        self._sink = sink

    def commit(self, committables: list[Committable]) -> None:
        self._sink.commit(
            [
                Batch(
                    one.lineage,
                    one.uid,
                    one.subtask,
                    one.attempt,
                    one.payload["number"],
                    one.payload["payload"],
                    one.payload.get("key_version", 1),
                )
                for one in committables
            ]
        )

    def clean(self, lineage: str, uid: str, before_attempt: int) -> int:
        return self._sink.discard(lineage, uid, before_attempt)
