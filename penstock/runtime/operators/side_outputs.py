"""Collect the records that functions emit to side outputs."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from functools import partial
from types import FunctionType
from typing import Any

from penstock.dataflow.errors import JobError
from penstock.dataflow.object_reuse import copy_if_shared
from penstock.dataflow.output_tag import OutputTag
from penstock.runtime.control.record_class_search import global_names
from penstock.runtime.serialization.record_batch import RecordBatch

__all__ = ["SideOutputs", "mentions_output_tag"]


class SideOutputs(dict[str, list[Any]]):
    """The records that an operator has emitted to side outputs, by the id of the tag.

    The chain runner passes the records on after each call of the operator, and clears the dict.

    Arguments:
        operator: the name of the operator.
        declared: the ids of the tags whose records the program reads.
    """

    def __init__(self, operator: str, declared: Collection[str] = ()) -> None:
        super().__init__()
        self.declared = frozenset(declared)
        self._operator = operator

    def emit(self, tag: str, record: Any) -> None:
        """Emit a record to the side output with the id `tag`.

        Raises:
            JobError: if no stream of the program is this side output.
        """
        records = self.get(tag)
        if records is None:
            records = self[tag] = self._begin(tag)
        records.append(record)

    def take(self) -> list[tuple[str, RecordBatch]]:
        """Remove all records, and return a batch for each tag that has records."""
        batches = [(tag, RecordBatch(records)) for tag, records in self.items()]
        self.clear()
        return batches

    def routed(self, function: Callable[..., Any]) -> Callable[..., Iterator[Any]]:
        """Return a function that yields what `function` emits to the main output only.

        It emits the pairs `(tag, record)` to the side outputs.
        """
        return partial(self._route, function)

    def _route(self, function: Callable[..., Any], *arguments: Any) -> Iterator[Any]:
        for emitted in function(*arguments) or ():
            if type(emitted) is tuple and emitted and type(emitted[0]) is OutputTag:
                tag, record = self._pair(emitted)
                self.emit(tag.tag_id, copy_if_shared(record))
            elif type(emitted) is OutputTag:
                self._pair((emitted,))
            else:
                yield emitted

    def _pair(self, emitted: tuple[Any, ...]) -> tuple[OutputTag, Any]:
        if len(emitted) != 2:
            raise JobError(
                f"{emitted[0]!r} was emitted with {len(emitted) - 1} values: write "
                f"`yield tag, value`, with one value, which may be a tuple",
                operator=self._operator,
            )
        return emitted

    def _begin(self, tag: str) -> list[Any]:
        if tag in self.declared:
            return []
        known = ", ".join(sorted(map(repr, self.declared))) or "none"
        raise JobError(
            f"a record was emitted to side output {tag!r}, which no stream of the program reads "
            f"(it reads {known}): call get_side_output(OutputTag({tag!r})) on the operator's "
            f"stream, even if nothing uses the result, or do not emit the record",
            operator=self._operator,
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
