"""Run operators that join two keyed streams without a cluster, at any parallelism."""

from __future__ import annotations

import copy
import random
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from penstock.dataflow.graph.job_graph import Operator
from penstock.dataflow.graph.key_groups import key_group, key_group_range, subtask_of_key_group
from penstock.dataflow.graph.keys import canonical
from penstock.dataflow.operators.operator_spec import OperatorSpec
from penstock.dataflow.time import MIN_WATERMARK
from penstock.runtime.operators.building import OperatorPlace
from penstock.runtime.operators.context import OperatorContext
from penstock.runtime.operators.registry import build_operator
from penstock.runtime.serialization.codec import Codec
from penstock.runtime.serialization.record_batch import RecordBatch
from penstock.runtime.serialization.type_registry import TypeRegistry
from penstock.snapshot.metadata.state_kind import StateKind
from penstock.snapshot.state import KeyedBackend
from tests.snapshot.state.backends import as_rows, drive

GROUPS = 16
CODEC = Codec(TypeRegistry())
Timed = tuple[Any, int]


@dataclass
class Joins:
    """The subtasks of an operator that joins two streams, whose keys are the first items.

    Arguments:
        kind: the kind of the operator.
        operation: the function of the operator.
        folder: a folder for state.
        tags: the tags of the side outputs that the program reads.
    """

    kind: OperatorSpec
    operation: Any
    folder: Path
    tags: tuple[str, ...] = ()
    parallelism: int = 1
    watermark: int = MIN_WATERMARK
    subtasks: list[Any] = field(default_factory=list)
    side: Counter[Any] = field(default_factory=Counter)
    attempts: int = 0
    numbers: int = 0

    def __post_init__(self) -> None:
        self._start([])

    def _start(self, handles: list[Any]) -> None:
        self.subtasks, self.attempts = [], self.attempts + 1
        for subtask in range(self.parallelism):
            backend = KeyedBackend(
                folder=self.folder / f"work-{self.attempts}-{subtask}",
                codec=CODEC,
                canonical=canonical,
                max_parallelism=GROUPS,
                groups=key_group_range(subtask, GROUPS, self.parallelism),
            )
            if handles:
                drive(backend.restore(handles))
            parts = ("join", "uid", subtask, self.parallelism, GROUPS, 0, CODEC, backend, self.tags)
            context = OperatorContext(*parts)
            context.set_watermark(self.watermark)
            operator = Operator(0, self.kind, "join", copy.deepcopy(self.operation))
            operator.key_selector = operator.second_key_selector = lambda record: record[0]
            task = build_operator(OperatorPlace(operator, context))
            task.open()
            self.subtasks.append(task)

    def restart(self, parallelism: int) -> None:
        """Take a snapshot, and continue from it with another number of subtasks."""
        handles = []
        for task in self.subtasks:
            self.numbers += 1
            target = self.folder / f"snapshot-{self.numbers}"
            handle, *_ = drive(task.context.backend.capture(self.numbers).write(target))
            handles.append((self.folder, handle))
        old, self.parallelism = self.subtasks, parallelism
        self._start(handles)
        for task in old:
            task.context.backend.close()

    def spill(self) -> None:
        """Write all state to RocksDB, and remove it from memory, except timers."""
        for task in self.subtasks:
            backend = task.context.backend
            if not backend.storage.is_open:
                as_rows(backend)
            self.numbers += 1
            target = self.folder / f"spilled-{self.numbers}"
            drive(backend.capture(self.numbers).write(target))
            for table in backend.tables:
                if table.kind is not StateKind.TIMER:
                    table.evict(1_000_000)

    def add(self, input: int, *records: Timed) -> Counter[Timed]:
        """Process records of one input; return what is emitted, with event times."""
        parts: dict[int, list[Timed]] = {}
        for record, timestamp in records:
            group = key_group(canonical(record[0]), GROUPS)
            subtask = subtask_of_key_group(group, GROUPS, self.parallelism)
            parts.setdefault(subtask, []).append((record, timestamp))
        found: Counter[Timed] = Counter()
        for subtask, part in parts.items():
            rows, times = [record for record, _ in part], [time for _, time in part]
            task = self.subtasks[subtask]
            task.select_input(input)
            found += self._taken(task, [task.process(RecordBatch(rows, None, times))])
        return found

    def advance(self, watermark: int) -> Counter[Timed]:
        """Advance the watermark, and return what is emitted, with event times."""
        self.watermark = watermark
        found: Counter[Timed] = Counter()
        for task in self.subtasks:
            task.context.set_watermark(watermark)
            found += self._taken(task, task.advance_watermark(watermark))
        return found

    def _taken(self, task: Any, batches: Any) -> Counter[Timed]:
        found: Counter[Timed] = Counter()
        for batch in batches:
            found.update(zip(batch.rows(), batch.timestamps or [], strict=True))
        for tag, batch in task.side_outputs.take():
            self.side.update((tag, row, time) for row, time in zip(batch.rows(), batch.times()))  # noqa: B905
        return found

    def size(self) -> int:
        """Return the number of entries of all states, with timers."""
        return sum(
            1
            for task in self.subtasks
            for name in task.context.backend.tables.names
            for _ in task.context.backend.scan(name)
        )

    def close(self) -> None:
        """Close the backends."""
        for task in self.subtasks:
            task.context.backend.close()


def disturb(joins: Joins, rng: random.Random) -> None:
    """Restore the subtasks, rescale them, or move their state to disk, now and then."""
    step = rng.random()
    if step < 0.08:
        joins.restart(rng.choice([1, 2, 3]))
    elif step < 0.14:
        joins.spill()
