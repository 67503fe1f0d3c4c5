"""What a task is given: its chain of operators, its protocol, and who hears of it. Records only."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from penstock.dataflow.errors import StoreError
from penstock.runtime.network.partitioners import StreamPartitioner
from penstock.runtime.operators.base import RunningOperator
from penstock.runtime.user_code.current_operator import operator_at_work
from penstock.runtime.user_code.errors import to_job_error
from penstock.snapshot.protocols.events import Command, Event

if TYPE_CHECKING:
    from penstock.runtime.task.task import Task

__all__ = ["ChainNode", "SnapshotProtocol", "TaskListener", "close_all"]


class SnapshotProtocol(Protocol):
    """Says what to do about barriers: Algorithm 1 or 2, or another; see `penstock.snapshot`."""

    def handle(self, event: Event) -> list[Command]:
        """What to do about an event, in this order."""


class TaskListener(Protocol):
    """Hears what becomes of a task; the TaskManager."""

    def input_ended(self, task: Task) -> None:
        """The task has processed all of its bounded input."""

    def outside_ended(self, task: Task) -> None:
        """All input from outside of the task's loop has been processed."""


@dataclass
class ChainNode:
    """An operator of the chain, what is fused behind it, and the links that leave it."""

    operator: RunningOperator
    children: list[ChainNode]
    partitioners: list[StreamPartitioner]
    #: Those of the partitioners whose link stays inside the task's loop.
    inner: frozenset[StreamPartitioner] = frozenset()

    def walk(self) -> Iterator[ChainNode]:
        """Yield this node and all behind it, parents first."""
        yield self
        for child in self.children:
            yield from child.walk()

    @property
    def consumers(self) -> int:
        """How many take its output; with more than one, mutable records are copied."""
        return len(self.children) + len(self.partitioners)


def close_all(closers: Iterable[tuple[RunningOperator, Callable[[], None]]]) -> None:
    """Call all of these, whatever one raises; then raise the first error, with its operator."""
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
