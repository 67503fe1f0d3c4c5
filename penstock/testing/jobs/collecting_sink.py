"""A sink that collects the output of a job in the memory of the test: `CollectingSink`."""

from __future__ import annotations

import secrets
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Generic

from penstock.dataflow.sink import Committable, Committer, Sink, SinkWriter, WriterContext
from penstock.dataflow.type_variables import T
from penstock.testing.jobs.in_process import job_of


@dataclass
class _Collected:
    """The records of one sink: the committed ones, and the staged ones by name."""

    values: list[Any] = field(default_factory=list)
    staged: dict[str, list[Any]] = field(default_factory=dict)


#: The records of all sinks, by the id of the sink. The copies of a sink in a job find them here.
_collected: dict[str, _Collected] = {}


class CollectingSink(Sink[T], Generic[T]):
    """Collects records in a list, exactly once.

    A record is in `values` when the snapshot after it is complete, as in a file sink. The job must
    run in the process of the test.

    Examples:
        >>> sink = CollectingSink()
        >>> _ = env.from_collection([1, 2]).sink_to(sink)
        >>> _ = env.execute("numbers")
        >>> sink.values
        [1, 2]
    """

    exactly_once = True

    def __init__(self) -> None:
        self._id = secrets.token_hex(8)
        _collected[self._id] = _Collected()
        weakref.finalize(self, _collected.pop, self._id)

    @property
    def values(self) -> list[T]:
        """The records that are committed, in the order of their snapshots and subtasks."""
        return _collected[self._id].values

    def __iter__(self) -> Iterator[Any]:
        return iter(self.values)

    def __len__(self) -> int:
        return len(self.values)

    def clear(self) -> None:
        """Forget all records."""
        _collected[self._id] = _Collected()

    def create_writer(self, context: WriterContext) -> SinkWriter:
        """Return a writer that stages records in memory.

        Raises:
            GraphError: if the job does not run in the process of its program.
        """
        del context
        job_of("CollectingSink")
        return _CollectingWriter(_collected[self._id])

    def create_committer(self) -> Committer:
        """Return a committer that makes staged records visible.

        Raises:
            GraphError: if the job does not run in the process of its program.
        """
        job_of("CollectingSink")
        return _CollectingCommitter(_collected[self._id])


class _CollectingWriter(SinkWriter):
    def __init__(self, collected: _Collected) -> None:
        self._collected = collected
        self._batch: list[Any] = []

    def write(self, batch: list[Any]) -> None:
        self._batch += batch

    def prepare(self, snapshot: int) -> Callable[[], list[Any]] | None:
        del snapshot
        batch, self._batch = self._batch, []
        if not batch:
            return None
        name = secrets.token_hex(8)
        self._collected.staged[name] = batch
        return lambda: [name]


class _CollectingCommitter(Committer):
    def __init__(self, collected: _Collected) -> None:
        self._collected = collected

    def commit(self, committables: list[Committable]) -> None:
        for committable in committables:
            self._collected.values += self._collected.staged.pop(committable.payload, [])
