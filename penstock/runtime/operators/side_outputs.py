"""Collect the records that functions emit to side outputs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from types import FunctionType
from typing import Any

from penstock.dataflow.errors import JobError
from penstock.dataflow.object_reuse import copy_if_shared
from penstock.dataflow.output_tag import OutputTag
from penstock.dataflow.time import NO_TIMESTAMP
from penstock.runtime.control.record_class_search import global_names
from penstock.runtime.operators.context import OperatorContext
from penstock.runtime.serialization.record_batch import RecordBatch, RecordBuffer

__all__ = ["SideOutputs", "mentions_output_tag"]


class SideOutputs(dict[str, RecordBuffer]):
    """The records that an operator has emitted to side outputs, by the id of the tag.

    The chain runner passes the records on after each call of the operator, and clears the dict.

    Arguments:
        context: the place of the operator in the job.
    """

    def __init__(self, context: OperatorContext) -> None:
        super().__init__()
        #: The ids of the tags whose records the program reads.
        self.declared = frozenset(context.side_outputs)
        self._context = context

    def emit(self, tag: str, record: Any, timestamp: int = NO_TIMESTAMP) -> None:
        """Emit a record to a side output.

        Arguments:
            tag: the id of the tag.
            record: the record.
            timestamp: the event time of the record, in milliseconds.

        Raises:
            JobError: if no stream of the program is this side output.
        """
        buffer = self.get(tag)
        if buffer is None:
            buffer = self[tag] = self._begin(tag)
        if buffer.timestamps is None:
            if timestamp == NO_TIMESTAMP:
                buffer.records.append(record)
                return
            buffer.start_timestamps()
        buffer.append_timed(record, timestamp)

    def take(self) -> list[tuple[str, RecordBatch]]:
        """Remove all records, and return a batch for each tag that has records."""
        batches = [(tag, buffer.take()) for tag, buffer in self.items()]
        self.clear()
        return batches

    def take_over(self, others: SideOutputs) -> None:
        """Take the records of another object, whose operator is a part of this operator.

        The chain runner has taken the earlier records of this object already.
        """
        self.update(others)
        others.clear()

    def routed(self, function: Callable[..., Any]) -> Callable[..., Iterator[Any]]:
        """Return a function that yields what `function` emits to the main output only.

        It emits the pairs `(tag, record)` to the side outputs, with the current event time.
        """
        return partial(self._route, function)

    def _route(self, function: Callable[..., Any], *arguments: Any) -> Iterator[Any]:
        for emitted in function(*arguments) or ():
            if type(emitted) is tuple and emitted and type(emitted[0]) is OutputTag:
                tag, record = self._pair(emitted)
                self.emit(tag.tag_id, copy_if_shared(record), self._context.timestamp)
            elif type(emitted) is OutputTag:
                self._pair((emitted,))
            else:
                yield emitted

    def _pair(self, emitted: tuple[Any, ...]) -> tuple[OutputTag, Any]:
        if len(emitted) != 2:
            raise JobError(
                f"{emitted[0]!r} was emitted with {len(emitted) - 1} values: write "
                f"`yield tag, value`, with one value, which may be a tuple",
                operator=self._context.name,
            )
        return emitted

    def _begin(self, tag: str) -> RecordBuffer:
        if tag in self.declared:
            return RecordBuffer()
        known = ", ".join(sorted(map(repr, self.declared))) or "none"
        raise JobError(
            f"a record was emitted to side output {tag!r}, which no stream of the program reads "
            f"(it reads {known}): call get_side_output(OutputTag({tag!r})) on the operator's "
            f"stream, even if nothing uses the result, or do not emit the record",
            operator=self._context.name,
        )


def mentions_output_tag(function: Any) -> bool:
    """Return whether the code or an attribute of a function object refers to an `OutputTag`.

    Operators whose functions mention no tag need not look for tags among their records.
    """
    if any(isinstance(value, OutputTag) for value in getattr(function, "__dict__", {}).values()):
        return True
    members = (member for cls in type(function).__mro__ for member in vars(cls).values())
    return any(_mentions(member) for member in members)


def _mentions(member: Any) -> bool:
    if isinstance(member, OutputTag):
        return True
    member = getattr(member, "__func__", member)
    if not isinstance(member, FunctionType) or member.__module__.startswith("penstock."):
        return False
    names = global_names(member.__code__)
    if "OutputTag" in names:
        return True
    mentioned: Iterable[Any] = (member.__globals__.get(name) for name in names)
    return any(isinstance(value, OutputTag) for value in (*mentioned, *_captured(member)))


def _captured(function: FunctionType) -> Iterator[Any]:
    for cell in function.__closure__ or ():
        try:
            yield cell.cell_contents
        except ValueError:  # the captured variable has no value
            continue
