"""An operator of asynchronous requests by itself, whose calls a test ends by hand."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from penstock import AsyncRetryStrategy
from penstock.dataflow.async_io import AsyncOperation
from penstock.runtime.operators.async_wait.operator import AsyncWaitOperator
from penstock.runtime.operators.context import OperatorContext
from penstock.runtime.operators.requests import Held
from penstock.runtime.serialization.codec import Codec
from penstock.runtime.serialization.record_batch import RecordBatch
from penstock.runtime.serialization.type_registry import TypeRegistry
from penstock.runtime.user_code.async_caller import Outcome
from penstock.snapshot.state.operator_state import OperatorStateBackend

CODEC = Codec(TypeRegistry())


class HandCaller:
    """Keeps calls until the test ends them."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, Callable[[Outcome], None]]] = []
        self.cancelled: list[Any] = []

    def call(
        self, function: Callable[[Any], Any], value: Any, done: Callable[[Outcome], None]
    ) -> Callable[[], None]:
        self.calls.append((value, done))
        return lambda: self.cancelled.append(value)

    def run(self, function: Callable[..., Any], *arguments: Any) -> None:
        function(*arguments)

    @property
    def values(self) -> list[Any]:
        return [value for value, _ in self.calls]

    def end(self, value: Any, returned: Any = None, error: BaseException | None = None) -> None:
        index = self.values.index(value)
        _, done = self.calls.pop(index)
        done(Outcome(returned, error))


async def lookup(value: Any) -> list[Any]:
    return [value]


OPERATION = AsyncOperation(
    lookup, True, 1000, 3, AsyncRetryStrategy.no_restart(), "trio", key_selector=None
)


class Bench:
    """An operator, with a caller, a clock and a mailbox of the test."""

    def __init__(self, subtask: int = 0, parallelism: int = 1, **changes: Any) -> None:
        self.caller, self.now, self.woken = HandCaller(), 5_000, 0
        backend = OperatorStateBackend("op", CODEC)
        self.context = OperatorContext(
            "op",
            "op",
            subtask,
            parallelism,
            8,
            0,
            CODEC,
            operator_state=backend,
            now_ms=lambda: self.now,
        )
        operation = replace(OPERATION, **changes)
        self.operator = AsyncWaitOperator(operation, self.context, self.caller, self._wake)

    def _wake(self) -> None:
        self.woken += 1

    def open(self, states: Any = ()) -> Bench:
        assert self.context.operator_state is not None
        self.context.operator_state.restore(states)
        self.operator.initialize_state()
        self.operator.open()
        return self

    def send(self, *records: Any, timestamps: list[int] | None = None) -> None:
        assert not self.operator.process(RecordBatch([*records], None, timestamps)).count

    def output(self) -> list[Any]:
        """Return the records and held elements that leave now."""
        out: list[Any] = []
        while self.operator.ready:
            piece = self.operator.next_output()
            out += [piece.element] if isinstance(piece, Held) else piece.rows()
        return out

    def advance(self, milliseconds: int) -> None:
        self.now += milliseconds
        assert not list(self.operator.advance_processing_time(self.now))

    def states(self) -> Any:
        """Return the operator's state in a snapshot that is taken now."""
        captured = self.operator.capture_operator_state(1, 0)
        assert captured is not None
        return captured.states
