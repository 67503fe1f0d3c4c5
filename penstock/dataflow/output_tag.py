"""Define `OutputTag`, which names a side output of an operator."""

from __future__ import annotations

from typing import ClassVar, Generic, Self, TypeAlias

from penstock.dataflow.errors import GraphError
from penstock.dataflow.type_variables import T, UserValue
from penstock.dataflow.types import TypeInformation


class OutputTag(Generic[T]):
    """Names a side output: a further stream of an operator. (Flink: `OutputTag`.)

    A process function emits a record to a side output with `yield tag, value`.

    Two tags with the same id name the same side output. For type checkers, a tag may have the type
    of its records: `OutputTag[Order]("late")`.

    Arguments:
        tag_id: the id, unique within the operator.
        type_info: the type of the records, for type checkers; otherwise ignored.

    Raises:
        TypeError: if the id is not a non-empty string.

    Examples:
        >>> NEGATIVE = OutputTag("negative")
        >>> class Split(ProcessFunction):
        ...     def process_element(self, value, ctx):
        ...         if value < 0:
        ...             yield NEGATIVE, value
        ...         else:
        ...             yield value
        >>> numbers = env.from_collection([1, -1, 2]).process(Split())
        >>> list(numbers.get_side_output(NEGATIVE).execute_and_collect())
        [-1]
    """

    __slots__ = ("tag_id", "type_info")

    #: Whether this process has made or received a tag. Otherwise no function can emit one, and the
    #: operators need not look for tags.
    any_made: ClassVar[bool] = False

    def __new__(cls, *arguments: object, **named: object) -> Self:
        """Return a new tag. Also called for tags that come with the code of a job."""
        del arguments, named
        OutputTag.any_made = True
        return super().__new__(cls)

    def __init__(self, tag_id: str, type_info: TypeInformation[T] | type[T] | None = None) -> None:
        if not isinstance(tag_id, str) or not tag_id:
            raise TypeError(f"an OutputTag needs an id that is a non-empty string, not {tag_id!r}")
        self.tag_id = tag_id
        self.type_info = type_info

    def __eq__(self, other: object) -> bool:
        return isinstance(other, OutputTag) and other.tag_id == self.tag_id

    def __hash__(self) -> int:
        return hash(self.tag_id)

    def __repr__(self) -> str:
        return f"OutputTag({self.tag_id!r})"


#: A pair (tag, record), which a process function yields to emit a record to a side output.
SideOutput: TypeAlias = tuple[OutputTag, UserValue]


def check_output_tag(method: str, tag: object) -> OutputTag:
    """Return the tag that a program passes to a method.

    Raises:
        GraphError: if it is not an `OutputTag`.
    """
    if not isinstance(tag, OutputTag):
        raise GraphError(f"{method} takes an OutputTag, not {tag!r}: write OutputTag({str(tag)!r})")
    return tag
