"""Define `OperatorSettings`, the base class of streams and sinks.

Its methods change the settings of one operator: its name, uid, parallelism and chaining.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self

from penstock.dataflow.base_environment import BaseEnvironment
from penstock.dataflow.config import (
    MAX_PARALLELISM,
    ExecutionConfig,
    SlotSharingGroup,
    check_parallelism,
)
from penstock.dataflow.errors import GraphError
from penstock.dataflow.graph.job_graph import (
    Chaining,
    Operator,
    OperatorOutput,
    Partitioning,
)


class OperatorSettings:
    """Sets options of the operator that was added last. Base class of streams and sinks.

    Arguments:
        environment: the environment that the operator belongs to.
        outputs: the outputs of operators that form the stream. There are several after a union.
    """

    def __init__(self, environment: BaseEnvironment, outputs: Sequence[OperatorOutput]) -> None:
        self._environment = environment
        self._outputs = tuple(outputs)

    def name(self, name: str) -> Self:
        """Set the name of the operator, which plans, reports and errors show."""
        self._operator("name(...)").name = str(name)
        return self

    def uid(self, uid: str, *, formerly: str | None = None) -> Self:
        """Set the id that identifies the operator's state in snapshots.

        With the same uid, a resumed job finds the state even if the program has changed. For a
        sink, the uid also identifies its uncommitted output.

        Arguments:
            uid: the uid, which no other operator has.
            formerly: the former uid. If a snapshot has an operator with this uid, a resumed job
                takes its state. It may be a uid that Penstock has derived.

        Raises:
            GraphError: if a uid is not a non-empty string, or if `formerly` is the present uid.

        Example:
            The operator was called "counts" before::

                words.key_by(str).count().uid("word counts", formerly="counts")
        """
        for one in (uid, formerly):
            if one is not None and not (isinstance(one, str) and one):
                raise GraphError(f"a uid is a non-empty string, not {one!r}")
        if uid is None:
            raise GraphError("a uid is a non-empty string, not None")
        if uid == formerly:
            raise GraphError(f"the former uid {uid!r} is the present one: leave it out")
        operator = self._operator("uid(...)")
        operator.uid, operator.former_uid = uid, formerly
        return self

    def set_parallelism(self, parallelism: int) -> Self:
        """Set the number of subtasks of the operator.

        Raises:
            GraphError: if `parallelism` is not a whole number from 1 to 32,768, or if the operator
                cannot run in parallel.
        """
        operator = self._operator("set_parallelism(...)")
        check_parallelism(parallelism, MAX_PARALLELISM, f"operator {operator.name!r}")
        if operator.non_parallel_reason and parallelism > 1:
            raise GraphError(
                f"operator {operator.name!r} cannot run in parallel: {operator.non_parallel_reason}"
            )
        operator.parallelism = parallelism
        return self

    def force_non_parallel(self) -> Self:
        """Run the operator with one subtask, at any parallelism of the job."""
        operator = self._operator("force_non_parallel()")
        operator.parallelism, operator.non_parallel_reason = 1, "force_non_parallel() was called"
        return self

    def slot_sharing_group(self, slot_sharing_group: str | SlotSharingGroup) -> Self:
        """Accept a slot sharing group, which has no effect: all operators share their slots.

        Raises:
            GraphError: if it is neither a name nor a `SlotSharingGroup`.
        """
        self._operator("slot_sharing_group(...)")
        if not isinstance(slot_sharing_group, str | SlotSharingGroup):
            raise GraphError(
                f"a slot sharing group is a name or a SlotSharingGroup, not {slot_sharing_group!r}"
            )
        return self

    def get_execution_config(self) -> ExecutionConfig:
        """Return an object that changes the execution settings of the job."""
        return self._environment.get_config()

    def disable_chaining(self) -> Self:
        """Run the operator in a separate task, without chaining it to other operators."""
        self._operator("chaining").chaining = Chaining.NEVER
        return self

    def _operator(self, setting: str) -> Operator:
        """Return the operator that a setting changes.

        Raises:
            GraphError: if the stream is not the direct output of one operator that runs.
        """
        if len(self._outputs) != 1 or self._outputs[0].partitioning not in (
            None,
            Partitioning.FORWARD,
        ):
            raise GraphError(
                f"{setting} belongs right after the operator that it is for, not after a union, a "
                f"key_by or another change of partitioning"
            )
        operator = self._outputs[0].operator
        if self._outputs[0].tag is not None:
            raise GraphError(
                f"{setting} is for an operator, and this stream is a side output of "
                f"{operator.name!r}: call it before get_side_output(...)"
            )
        if operator.spec.is_feedback:
            raise GraphError(
                f"{setting} is for an operator, and feedback {operator.name!r} is none: call it "
                f"on the operators that read it or that it is closed with"
            )
        return operator
