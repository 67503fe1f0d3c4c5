"""The current batch of a task, and the reasons for records to wait."""

from __future__ import annotations

from penstock.runtime.task.activities.activity import Activity, Pause
from penstock.runtime.task.slice_runner import SliceRunner
from penstock.runtime.task.task_outputs import TaskOutputs
from penstock.snapshot.state import KeyedBackend


class CurrentBatch(Activity):
    """Processes the rest of the current batch, slice by slice.

    Arguments:
        slices: processes the batch.
        outputs: the output channels of the task.
    """

    def __init__(self, slices: SliceRunner, outputs: TaskOutputs) -> None:
        self._slices, self._outputs = slices, outputs

    def ready(self) -> bool:
        """Return whether there is a batch, and room for its records."""
        return self._slices.batch is not None and not self._slices.waits

    def step(self) -> bool:
        """Process the next slice."""
        self._slices.run()
        self._outputs.send_full()
        return True


class StateMemory(Pause):
    """Waits while keyed state needs more memory than it may, until a snapshot has been written.

    Arguments:
        backend: the keyed state of an operator of the task.
    """

    def __init__(self, backend: KeyedBackend) -> None:
        self._backend = backend

    def ready(self) -> bool:
        """Return whether the state is over its memory limit."""
        return self._backend.over_memory_limit


class RestOfBatch(Pause):
    """Waits for requests while the first operator has no room for the rest of the batch.

    Arguments:
        slices: processes the batch.
    """

    def __init__(self, slices: SliceRunner) -> None:
        self._slices = slices

    def ready(self) -> bool:
        """Return whether there is a rest of a batch."""
        return self._slices.batch is not None
