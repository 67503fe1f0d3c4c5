"""The runtime context of an operator, through which functions use keyed state."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from penstock.dataflow.errors import GraphError
from penstock.dataflow.state import RuntimeContext, ValueState, ValueStateDescriptor
from penstock.runtime.serialization.codec import Codec
from penstock.snapshot.state import MISSING, TOMBSTONE, KeyedBackend, KeyedTable
from penstock.snapshot.state.operator_state import OperatorStateBackend

__all__ = ["OperatorContext"]


class OperatorContext(RuntimeContext):
    """The place of an operator in the job. User functions receive it as `RuntimeContext`.

    Arguments:
        name: the name of the operator.
        uid: the uid of the operator, which identifies its state in a snapshot.
        subtask: the index of the subtask, from 0.
        parallelism: the number of subtasks.
        max_parallelism: the number of key groups.
        attempt: the number of earlier execution attempts of the job.
        codec: the codec, which copies and encodes records.
        backend: the operator's keyed state; None if it has none.
        side_outputs: the ids of the tags whose records the program reads.
        operator_state: the operator's operator state; None if it has none.
    """

    def __init__(
        self,
        name: str,
        uid: str,
        subtask: int,
        parallelism: int,
        max_parallelism: int,
        attempt: int,
        codec: Codec,
        backend: KeyedBackend | None = None,
        side_outputs: Collection[str] = (),
        operator_state: OperatorStateBackend | None = None,
    ) -> None:
        self.name, self.uid = name, uid
        self.subtask, self.parallelism = subtask, parallelism
        self.max_parallelism, self.attempt = max_parallelism, attempt
        self.codec = codec
        self.backend = backend
        self.side_outputs = side_outputs
        self.operator_state = operator_state
        #: The key of the record that a keyed process function is processing.
        self.key: Any = None

    def get_task_name(self) -> str:
        """Return the name of the operator."""
        return self.name

    def get_number_of_parallel_subtasks(self) -> int:
        """Return the number of subtasks of the operator."""
        return self.parallelism

    def get_max_number_of_parallel_subtasks(self) -> int:
        """Return the number of key groups."""
        return self.max_parallelism

    def get_index_of_this_subtask(self) -> int:
        """Return the index of this subtask, from 0."""
        return self.subtask

    def get_attempt_number(self) -> int:
        """Return the number of times that the job was started before, from 0."""
        return self.attempt

    def get_state(self, state_descriptor: ValueStateDescriptor) -> ValueState:
        """Return the keyed state that has the name of the descriptor.

        Raises:
            GraphError: if the operator is not on a keyed stream.
        """
        if self.backend is None:
            raise GraphError(
                f"operator {self.name!r} asked for state {state_descriptor.name!r}, but keyed "
                f"state exists only on a keyed stream: use key_by(...).process(...)"
            )
        table = self.backend.table(state_descriptor.name)
        # The user's function may store mutable values, and may delete values.
        table.allow_mutable()
        return _TableValueState(table, self)

    def mutability_probe(self) -> dict[Any, Any] | None:
        """Return an object `probe`, so that `value in probe` raises for mutable values.

        The error is a `TypeError`. Usually the probe is an empty dict, which raises for values
        without a hash. If the job has classes whose objects are both hashable and mutable, the
        probe is None, which raises for every value.
        """
        return {} if self.codec.hash_implies_immutable else None


class _TableValueState(ValueState):
    """The `ValueState` of an operator, which is stored in a table of its backend."""

    def __init__(self, table: KeyedTable, context: OperatorContext) -> None:
        self._table = table
        self._context = context

    # Methods run once per record, so the most frequent case is first and needs only one look-up.

    def value(self) -> Any:
        value = self._table.dirty.get(self._context.key)
        if value is None:  # The key has no changed entry, because tables never store None.
            value = self._table.lookup(self._context.key)
            return None if value is MISSING else value
        return None if value is TOMBSTONE else value

    def update(self, value: Any) -> None:
        if value is None:
            value = TOMBSTONE
        self._table.dirty[self._context.key] = value

    def clear(self) -> None:
        self._table.dirty[self._context.key] = TOMBSTONE
