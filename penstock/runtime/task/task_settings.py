"""The clocks and settings of a task."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from penstock.runtime.system.processor import Processor, WholeProcessor
from penstock.runtime.system.wall_clock import wall_clock_of_machine
from penstock.runtime.task.batch_sizing import TARGET_SECONDS
from penstock.runtime.task.source_reads import SourceReads
from penstock.runtime.task.task_steps import TaskSteps


@dataclass(frozen=True)
class TaskSettings:
    """The clocks and settings of a task.

    Arguments:
        clock: a function that returns the time in seconds, for waiting. In a simulation, the time
            is virtual.
        timer: a function that returns a more precise time in seconds, for the duration of work.
        processor: measures the processor time of the thread that runs the task.
        target_seconds: the intended time for processing all records in flight to the task.
        keep_state: whether snapshots contain state. If not, they only commit output.
        wall_clock: a function that returns the time of day, in milliseconds since the epoch.
        steps: logs the steps of the task, and repeats those of its predecessor; None if the task
            need not repeat them.
        reads: logs or repeats the order in which a source task reads its splits; None if it need
            not repeat it.
    """

    clock: Callable[[], float]
    timer: Callable[[], float] = time.perf_counter
    processor: Processor = field(default_factory=lambda: WholeProcessor(time.perf_counter))
    target_seconds: float = TARGET_SECONDS
    keep_state: bool = True
    wall_clock: Callable[[], int] = wall_clock_of_machine
    steps: TaskSteps | None = None
    reads: SourceReads | None = None
