"""Capture the records that the operators of a harness emit."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from penstock.dataflow.functions import ProcessFunction, RuntimeContext
from penstock.runtime.operators.context import OperatorContext
from penstock.testing.timed_record import TimedRecord


class Capture(ProcessFunction):
    """Keeps copies of the records of a stream, and emits nothing.

    Arguments:
        tag: the id of the side output that it reads; None for the main output.
    """

    def __init__(self, tag: str | None = None) -> None:
        self.tag = tag
        self._records: list[TimedRecord] = []

    def open(self, runtime_context: RuntimeContext) -> None:
        """Begin without records."""
        assert isinstance(runtime_context, OperatorContext)
        self._copy = runtime_context.codec.copy_mutable
        self._records = []

    def process_element(self, value: Any, ctx: ProcessFunction.Context) -> Iterator[Any]:
        """Keep a copy of a record, because its function may change the record later."""
        (copied,) = self._copy([value])
        self._records.append(TimedRecord(copied, ctx.timestamp()))
        return iter(())

    def take(self) -> list[TimedRecord]:
        """Return the records since the last call, and forget them."""
        records, self._records = self._records, []
        return records
