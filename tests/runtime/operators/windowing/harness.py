"""Run operators of windows without a cluster: over real keyed state, and at any parallelism."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from penstock.dataflow.graph.key_groups import key_group, key_group_range, subtask_of_key_group
from penstock.dataflow.graph.keys import canonical
from penstock.dataflow.time import MIN_WATERMARK
from penstock.dataflow.windows import WindowOperation
from penstock.runtime.operators.context import OperatorContext
from penstock.runtime.operators.windowing.base import BaseWindowOperator
from penstock.runtime.operators.windowing.choice import window_class
from penstock.runtime.serialization.codec import Codec
from penstock.runtime.serialization.record_batch import RecordBatch
from penstock.runtime.serialization.type_registry import TypeRegistry
from penstock.snapshot.metadata.state_kind import StateKind
from penstock.snapshot.state import KeyedBackend
from tests.snapshot.state.backends import as_rows, drive

GROUPS = 16
CODEC = Codec(TypeRegistry())
Emitted = tuple[Any, int]


def make_window(operation: WindowOperation, context: OperatorContext, key_of: Any) -> Any:
    return window_class(operation, context)(operation, context, key_of)


@dataclass
class Windows:
    """The subtasks of an operator of windows.

    Arguments:
        operation: the windows and their functions.
        folder: a folder for state.
        make: makes the operator of a subtask.
        options: further arguments of the backends.
    """

    operation: WindowOperation
    folder: Path
    make: Callable[..., BaseWindowOperator] = make_window
    options: dict[str, Any] = field(default_factory=dict)
    parallelism: int = 1
    tags: tuple[str, ...] = ()
    now: int = 0
    codec: Codec = field(default_factory=lambda: CODEC)
    subtasks: list[BaseWindowOperator] = field(default_factory=list)
    late: list[Any] = field(default_factory=list)
    side: list[tuple[str, Any]] = field(default_factory=list)
    attempts: int = 0
    numbers: int = 0
    watermark: int = MIN_WATERMARK
    #: The highest watermark for which windows have fired.
    highest: int = MIN_WATERMARK

    def __post_init__(self) -> None:
        self._start(())

    def _start(self, handles: Iterable[Any]) -> None:
        self.subtasks, self.attempts = [], self.attempts + 1
        handles = list(handles)
        for subtask in range(self.parallelism):
            backend = KeyedBackend(
                folder=self.folder / f"work-{self.attempts}-{subtask}",
                codec=self.codec,
                canonical=canonical,
                max_parallelism=GROUPS,
                groups=key_group_range(subtask, GROUPS, self.parallelism),
                **self.options,
            )
            if handles:
                drive(backend.restore(handles))
            context = OperatorContext(
                "windows",
                "uid",
                subtask,
                self.parallelism,
                GROUPS,
                0,
                self.codec,
                backend,
                self.tags,
                now_ms=lambda: self.now,
            )
            context.set_watermark(self.watermark)
            context.set_restored_watermark(self.highest)
            operator = self.make(self.operation, context, lambda record: record[0])
            operator.open()
            self.subtasks.append(operator)

    def restart(self, parallelism: int) -> None:
        """Take a snapshot, and continue from it with another number of subtasks."""
        handles = []
        for operator in self.subtasks:
            self.numbers += 1
            target = self.folder / f"snapshot-{self.numbers}"
            handle, *_ = drive(operator.backend.capture(self.numbers).write(target))
            handles.append((self.folder, handle))
        old = self.subtasks
        self.parallelism = parallelism
        self._start(handles)
        for operator in old:
            operator.backend.close()

    def spill(self) -> None:
        """Write all state to RocksDB, and remove it from memory, except timers."""
        for operator in self.subtasks:
            backend = operator.backend
            if not backend.storage.is_open:
                as_rows(backend)
            self.numbers += 1
            target = self.folder / f"spilled-{self.numbers}"
            drive(backend.capture(self.numbers).write(target))
            for table in backend.tables:
                if table.kind is not StateKind.TIMER:
                    table.evict(1_000_000)

    def add(self, *records: tuple[Any, int]) -> list[Emitted]:
        """Process records, given with their event times; return what the windows emit."""
        parts: dict[int, list[tuple[Any, int]]] = {}
        for record, timestamp in records:
            group = key_group(canonical(record[0]), GROUPS)
            subtask = subtask_of_key_group(group, GROUPS, self.parallelism)
            parts.setdefault(subtask, []).append((record, timestamp))
        emitted: list[Emitted] = []
        for subtask, part in parts.items():
            rows, times = [record for record, _ in part], [time for _, time in part]
            emitted += self._taken(
                self.subtasks[subtask],
                [self.subtasks[subtask].process(RecordBatch(rows, None, times))],
            )
        return emitted

    def advance(self, watermark: int) -> list[Emitted]:
        """Advance the watermark, and return what the windows emit."""
        self.watermark = watermark
        self.highest = max(self.highest, watermark)
        emitted: list[Emitted] = []
        for operator in self.subtasks:
            operator.context.set_watermark(watermark)
            fired = self._taken(operator, operator.advance_watermark(watermark))
            times = [timestamp for _, timestamp in fired]
            assert times == sorted(times), "windows fire in the order of their time"
            emitted += fired
        return emitted

    def tick(self, now: int) -> list[Emitted]:
        """Let the clock pass a time, and return what the windows emit."""
        self.now = now + 1
        emitted: list[Emitted] = []
        for operator in self.subtasks:
            emitted += self._taken(operator, operator.advance_processing_time(self.now))
        return emitted

    def _taken(self, operator: BaseWindowOperator, batches: Iterable[RecordBatch]) -> list[Emitted]:
        emitted: list[Emitted] = []
        for batch in batches:
            emitted += zip(batch.rows(), batch.timestamps or [], strict=True)
        for tag, batch in operator.side_outputs.take():
            self.side += [(tag, record) for record in batch.rows()]
        return emitted

    def size(self) -> int:
        """Return the number of entries of all states, without timers."""
        return sum(
            1
            for operator in self.subtasks
            for name in operator.backend.tables.names
            for _ in operator.backend.scan(name)
        )

    def close(self) -> None:
        """Close the backends, and remove their files."""
        for operator in self.subtasks:
            operator.backend.close()
        shutil.rmtree(self.folder, ignore_errors=True)
