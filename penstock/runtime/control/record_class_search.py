"""Find the record classes that the functions of a program mention.

A function mentions a class if the class is in its globals, its closure or its annotations. Record
classes are dataclasses, named tuples, enums and structs of msgspec.
"""

from __future__ import annotations

import dataclasses
import enum
import sys
from collections import Counter
from collections.abc import Iterable
from itertools import chain
from types import FunctionType, MethodType
from typing import Any

from penstock.dataflow.functions import Function
from penstock.dataflow.graph.job_graph import JobGraph
from penstock.runtime.serialization.class_serializers import why_unsupported
from penstock.runtime.serialization.record_schemas import is_struct, name_of

#: The maximum depth of the search through values inside other values, in levels.
MAX_DEPTH = 6
#: The maximum number of items of a list or tuple that the search visits.
MAX_ITEMS = 100


def record_classes(graph: JobGraph, registered: Iterable[type]) -> list[type]:
    """Return the registered record classes, and the classes that functions mention.

    The mentioned classes are sorted by module and name, so that each run has the same list. A
    class that is only mentioned never stops a job: it is left out if it cannot be registered, or
    if another class has the same name.
    """
    # An operation may bring classes of its own, such as the windows that a window function sees.
    # A source may have a side output whose tag names the class of its records.
    brought = [getattr(one.function, "record_classes", ()) for one in graph.operators]
    brought += [
        [tag.type_info for tag in one.spec.source_tags if isinstance(tag.type_info, type)]
        for one in graph.operators
    ]
    found = list(dict.fromkeys([*registered, *chain.from_iterable(brought)]))
    search = _Search()
    for operator in graph.operators:
        search.visit(operator.function)
        search.visit(operator.key_selector)
        search.visit(operator.watermark_strategy)
    for edge in graph.edges:
        search.visit(edge.selector)
        search.visit(edge.partitioner)
    mentioned = [cls for cls in search.found if cls not in found]
    candidates = [cls for cls in mentioned if why_unsupported(cls) is None]
    names = Counter(map(name_of, [*found, *candidates]))
    found += sorted((cls for cls in candidates if names[name_of(cls)] == 1), key=name_of)
    return found


class _Search:
    """Collects the record classes that values mention, and the values inside these values."""

    def __init__(self) -> None:
        self.found: set[type] = set()
        self._seen: set[int] = set()

    def visit(self, value: Any, depth: int = 0) -> None:
        """Collect the record classes that a value mentions, and the values inside it.

        Arguments:
            value: any object.
            depth: the number of levels between a function of the program and the value.
        """
        if id(value) in self._seen or depth > MAX_DEPTH:
            return
        self._seen.add(id(value))
        if isinstance(value, type):
            self._visit_class(value, depth)
        elif isinstance(value, MethodType):
            self.visit(value.__func__, depth)
            self.visit(value.__self__, depth + 1)
        elif isinstance(value, FunctionType):
            self._visit_function(value, depth)
        elif isinstance(value, list | tuple):
            for item in value[:MAX_ITEMS]:
                self.visit(type(item), depth + 1)
                self.visit(item, depth + 1)
        elif _is_record_class(type(value)):
            self.found.add(type(value))
        elif hasattr(value, "__dict__") and not isinstance(value, type(sys)):
            self.visit(type(value), depth + 1)
            for item in vars(value).values():
                self.visit(item, depth + 1)

    def _visit_class(self, cls: type, depth: int) -> None:
        if _is_record_class(cls):
            self.found.add(cls)
        elif issubclass(cls, Function):
            for member in vars(cls).values():
                self.visit(member, depth + 1)

    def _visit_function(self, function: FunctionType, depth: int) -> None:
        for name in global_names(function.__code__):
            if name in function.__globals__:
                self.visit(function.__globals__[name], depth + 1)
        for cell in function.__closure__ or ():
            try:
                self.visit(cell.cell_contents, depth + 1)
            except ValueError:  # The captured variable has no value.
                continue
        for annotation in function.__annotations__.values():
            self.visit(annotation, depth + 1)


def global_names(code: Any) -> set[str]:
    """Return all global names that a code object and its nested code objects use."""
    names = set(code.co_names)
    for constant in code.co_consts:
        if hasattr(constant, "co_names"):
            names |= global_names(constant)
    return names


def _is_record_class(cls: type) -> bool:
    if cls.__module__.partition(".")[0] == "penstock":
        return False
    return (
        dataclasses.is_dataclass(cls)
        or (issubclass(cls, tuple) and hasattr(cls, "_fields"))
        or (issubclass(cls, enum.Enum) and bool(cls.__members__))
        or (is_struct(cls) and bool(cls.__struct_fields__))  # type: ignore[attr-defined]
    )
