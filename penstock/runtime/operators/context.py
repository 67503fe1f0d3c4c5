"""The runtime context of an operator, through which functions use keyed state."""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Mapping, Sequence, Set
from functools import cached_property
from types import MappingProxyType
from typing import Any

from penstock.dataflow.errors import GraphError
from penstock.dataflow.metrics import MetricGroup
from penstock.dataflow.state import (
    AggregatingState,
    AggregatingStateDescriptor,
    ListState,
    ListStateDescriptor,
    MapState,
    MapStateDescriptor,
    ReducingState,
    ReducingStateDescriptor,
    RuntimeContext,
    ValueState,
    ValueStateDescriptor,
)
from penstock.dataflow.time.watermark import MIN_WATERMARK, NO_TIMESTAMP
from penstock.dataflow.types.hash_probe import HashProbe
from penstock.runtime.network.partitioners import PositionedPartitioner
from penstock.runtime.operators.state import NO_KEY, KeyScope, StateStore
from penstock.runtime.operators.state.random_numbers import RandomNumbers
from penstock.runtime.operators.state.routing_positions import RoutingPositions
from penstock.runtime.operators.time.operator_timers import OperatorTimers
from penstock.runtime.serialization.codec import Codec
from penstock.runtime.system.wall_clock import wall_clock_of_machine
from penstock.snapshot.state import KeyedBackend
from penstock.snapshot.state.operator_state import OperatorStateBackend


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
        now_ms: returns the time of day, in milliseconds since the epoch.
        job_parameters: the parameters of the job.
        inputs: the names of the operators whose records the operator reads, for error messages.
        metrics: the metrics of the operator in this subtask. None makes a new group.
        restored_states: the names of the keyed states of the operator in the restored snapshot.
        run: identifies the run of the job, for its random numbers.
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
        now_ms: Callable[[], int] = wall_clock_of_machine,
        job_parameters: Mapping[str, str] = MappingProxyType({}),
        inputs: Sequence[str] = (),
        metrics: MetricGroup | None = None,
        restored_states: Set[str] = frozenset(),
        run: str = "",
    ) -> None:
        self._run = run
        #: The random numbers of the function; None until it asks for them.
        self.random_numbers: RandomNumbers | None = None
        #: The positions of the partitioners behind the operator; None if they are not kept.
        self.positions: RoutingPositions | None = None
        #: Why the function has no random numbers; "" if it has.
        self._no_random = (
            "key selectors and partitioners must always return the same for a record"
            if operator_state is None
            else ""
        )
        self.inputs = inputs
        self.restored_states = restored_states
        self.name, self.uid = name, uid
        self.subtask, self.parallelism = subtask, parallelism
        self.max_parallelism, self.attempt = max_parallelism, attempt
        self.codec = codec
        self.backend = backend
        self.side_outputs = side_outputs
        self.operator_state = operator_state
        #: Whether the operator state is captured. That of most operators is always empty.
        self.keeps_operator_state = operator_state is not None
        self._timers: OperatorTimers | None = None
        #: The key of the record that a keyed process function is processing.
        self.key: Any = NO_KEY
        #: The event time of that record, in milliseconds since the epoch.
        self.timestamp = NO_TIMESTAMP
        #: The time of the timer that fires, in milliseconds since the epoch.
        self.timer_time = NO_TIMESTAMP
        #: The current watermark of the operator, in milliseconds since the epoch.
        self.watermark = MIN_WATERMARK
        #: The highest watermark for which timers and windows of the restored state have fired.
        self.restored_watermark = MIN_WATERMARK
        self.now_ms = now_ms
        self._job_parameters = job_parameters
        #: The metrics of the function, and those of the engine.
        self.metrics = metrics or MetricGroup((name, str(subtask)))

    @cached_property
    def states(self) -> StateStore:
        """The keyed states of the operator's function."""
        return StateStore(self.name, self.backend, KeyScope(self), self.now_ms)

    @property
    def timers(self) -> OperatorTimers:
        """Return the timers of the operator, which has keyed state."""
        if self._timers is None:
            assert self.backend is not None
            self._timers = OperatorTimers(self.backend)
        return self._timers

    def use_timers(self, timers: OperatorTimers) -> None:
        """Set the timers of the operator, before it is opened."""
        self._timers = timers

    def set_watermark(self, timestamp: int) -> None:
        """Set the current watermark, in milliseconds since the epoch."""
        self.watermark = timestamp

    def set_restored_watermark(self, timestamp: int) -> None:
        """Set the highest watermark for which timers and windows of the restored state have fired.

        It is higher than the watermark if old subtasks had different ones.
        """
        self.restored_watermark = timestamp

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

    def get_metrics_group(self) -> MetricGroup:
        """Return the metrics of the operator in this subtask."""
        return self.metrics

    def get_random(self) -> random.Random:
        """Return the random numbers of the operator in this subtask."""
        if self.random_numbers is None:
            self.random_numbers = self._create_random_numbers()
            self.keeps_operator_state = True
        return self.random_numbers.generator

    def _create_random_numbers(self) -> RandomNumbers:
        if self._no_random:
            raise GraphError(
                f"operator {self.name!r} has no random numbers here: {self._no_random}. Draw in a "
                f"map in front of it, and put the number into the record"
            )
        backend = self.operator_state
        assert backend is not None
        if not backend.is_opening:
            raise GraphError(
                f"operator {self.name!r} called get_random while it ran: call it in open, and keep "
                f"the generator"
            )
        place = f"{self.subtask}/{self.parallelism}"
        # After a change of the parallelism, the numbers from the start would come again without
        # the number of the snapshot.
        seed = f"{self._run} {self.uid} {place} {backend.restored_from or 0}"
        return RandomNumbers(backend, self.subtask, self.parallelism, seed)

    def keep_position(self, link: int, partitioner: PositionedPartitioner) -> None:
        """Let a partitioner behind the operator continue from its position in a snapshot.

        Arguments:
            link: the id of the partitioner's link.
            partitioner: the partitioner.
        """
        if self.positions is None:
            assert self.operator_state is not None
            self.positions = RoutingPositions(self.operator_state, self.subtask, self.parallelism)
            self.keeps_operator_state = True
        self.positions.add(link, partitioner)

    def refuse_random_numbers(self, reason: str) -> None:
        """Let `get_random` raise an error, because the function must not draw random numbers."""
        self._no_random = reason

    def get_job_parameters(self) -> Mapping[str, str]:
        """Return the parameters of the job."""
        return MappingProxyType(self._job_parameters)

    def get_state(self, state_descriptor: ValueStateDescriptor) -> ValueState:
        """Return the value state with the descriptor's name."""
        return self.states.get_state(state_descriptor)

    def get_list_state(self, state_descriptor: ListStateDescriptor) -> ListState:
        """Return the list state with the descriptor's name."""
        return self.states.get_list_state(state_descriptor)

    def get_map_state(self, state_descriptor: MapStateDescriptor) -> MapState:
        """Return the map state with the descriptor's name."""
        return self.states.get_map_state(state_descriptor)

    def get_reducing_state(self, state_descriptor: ReducingStateDescriptor) -> ReducingState:
        """Return the reducing state with the descriptor's name."""
        return self.states.get_reducing_state(state_descriptor)

    def get_aggregating_state(
        self, state_descriptor: AggregatingStateDescriptor
    ) -> AggregatingState:
        """Return the aggregating state with the descriptor's name."""
        return self.states.get_aggregating_state(state_descriptor)

    def mutability_probe(self) -> HashProbe | None:
        """Return an object `probe`, so that `value in probe` raises for mutable values.

        The error is a `TypeError`. Usually the probe raises it for values without a hash. If the
        job has classes whose objects are both hashable and mutable, the probe is None, which raises
        for every value.
        """
        return HashProbe() if self.codec.hash_implies_immutable else None
