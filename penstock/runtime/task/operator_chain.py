"""A chain: the tree of operators that run as one task, with its partitioners."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

from penstock.dataflow.errors import StoreError
from penstock.dataflow.types import TypeInformation
from penstock.runtime.network.output_channel import OutputChannel
from penstock.runtime.network.partitioners import StreamPartitioner
from penstock.runtime.operators.base import RunningOperator
from penstock.runtime.user_code.current_operator import operator_at_work
from penstock.runtime.user_code.errors import to_job_error


@dataclass
class ChainNode:
    """An operator of a chain, with its consumers.

    Arguments:
        operator: the operator.
        children: the nodes of the operators that take its output within the chain.
        partitioners: the partitioners that send its output to other tasks.
        inner: the subset of `partitioners` whose links stay inside the task's loop.
        back_edges: the subset of `inner` whose links are back-edges.
        result_type: the declared type of the operator's records; None if it has none.
        sides: the consumers of the operator's side outputs: for the id of each tag that has
            consumers, a node of the same operator with these consumers.
    """

    operator: RunningOperator
    children: list[ChainNode]
    partitioners: list[StreamPartitioner]
    inner: frozenset[StreamPartitioner] = frozenset()
    back_edges: frozenset[StreamPartitioner] = frozenset()
    result_type: TypeInformation | None = None
    sides: dict[str, ChainNode] = field(default_factory=dict)

    def __post_init__(self) -> None:
        #: Whether several nodes and partitioners take the operator's output.
        self.shared = len(self.children) + len(self.partitioners) > 1

    def walk(self) -> Iterator[ChainNode]:
        """Yield this node and all nodes below it. Each node comes after its parent."""
        yield self
        for consumers in (self, *self.sides.values()):
            for child in consumers.children:
                yield from child.walk()

    @property
    def outputs(self) -> list[OutputChannel]:
        """Return the output channels of the operator outside of the task's loop."""
        routed = [p.outputs for p in self.partitioners if p not in self.inner]
        return [channel for outputs in (*routed, self.operator.outputs) for channel in outputs]

    @property
    def outputs_inside(self) -> list[OutputChannel]:
        """Return the output channels inside of the task's loop, without the back-edges."""
        return self._channels_of(self.inner - self.back_edges)

    @property
    def all_outputs_inside(self) -> list[OutputChannel]:
        """Return all output channels inside of the task's loop."""
        return self._channels_of(self.inner)

    def _channels_of(self, chosen: frozenset[StreamPartitioner]) -> list[OutputChannel]:
        return [channel for p in self.partitioners if p in chosen for channel in p.outputs]


def close_all(closers: Iterable[tuple[RunningOperator, Callable[[], None]]]) -> None:
    """Call all functions, even if some raise an error, and then raise the first error.

    Arguments:
        closers: each function, with the operator that its error message names.
    """
    failures: list[BaseException] = []
    for operator, close in closers:
        operator_at_work.set(operator.context)
        try:
            close()
        except StoreError as error:
            failures.append(error)
        except BaseException as error:
            failures.append(to_job_error(error, operator, []))
    operator_at_work.set(None)
    if failures:
        raise failures[0]
