"""The job's code on its way to the workers: the plan, the functions, the record classes.

Only code is pickled (with cloudpickle), only from a job to its own processes, and only over an
authenticated connection. Records and state are never pickled. A function that cannot be pickled is
found before the job starts, and the error names it.
"""

from __future__ import annotations

import dataclasses
import enum
import io
import os
import sys
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from types import FunctionType, MethodType
from typing import Any

from penstock.dataflow.config import JobConfig
from penstock.dataflow.errors import GraphError, JobError, PenstockError
from penstock.dataflow.functions import Function
from penstock.dataflow.graph.execution_graph import ExecutionGraph
from penstock.dataflow.graph.job_graph import JobGraph
from penstock.runtime.serialization.class_serializers import why_unsupported
from penstock.runtime.serialization.record_schemas import name_of
from penstock.runtime.user_code.process_logging import LoggingConfig

__all__ = ["JobCode", "pack", "record_classes", "unpack"]


@dataclass
class JobCode:
    """All that a process of the job needs to know of the program.

    Arguments:
        graph: the job graph, with the user's functions.
        plan: the compiled graph. It is sent apart from the code, and set by the receiver.
        config: the job's settings.
        types: the table of record classes.
        search_path, folder: where the program's own modules are found.
        logging: the logging configuration of the program.
    """

    graph: JobGraph
    config: JobConfig
    plan: ExecutionGraph | None = None
    types: list[type] = field(default_factory=list)
    search_path: tuple[str, ...] = field(default_factory=lambda: tuple(sys.path))
    folder: str = field(default_factory=os.getcwd)
    logging: LoggingConfig = field(default_factory=LoggingConfig)


def pack(code: JobCode) -> bytes:
    """Return the code as bytes. Raise `GraphError` that names an object that cannot be pickled."""
    from penstock.runtime.control.code_pickler import dumps

    try:
        return dumps(code)
    except Exception as error:
        raise GraphError(_culprit(code, error)) from error


def unpack(data: bytes) -> JobCode:
    """Return the code in `data`. Raise `JobError` if the program's modules cannot be imported."""
    import pickle

    try:
        code = pickle.load(io.BytesIO(data))
    except PenstockError:
        raise  # a module that is imported here executes a job
    except Exception as error:
        raise JobError(
            f"the job's code cannot be loaded in a worker: {type(error).__name__}: {error}\n"
            f"  modules that the program imports must be importable in its workers, too"
        ) from error
    assert isinstance(code, JobCode)
    return code


def record_classes(graph: JobGraph, registered: Iterable[type]) -> list[type]:
    """Return the registered record classes, and those that the program's functions mention.

    A function mentions a class by its globals, its closure and its annotations. Found are
    dataclasses, named tuples and enums; they are in order of their module and name, so that the
    table is the same on every run. A class that a function only mentions never stops a job: it is
    left out if it cannot be registered, or if its name stands for another class as well.
    """
    found = list(dict.fromkeys(registered))
    seen: set[int] = set()
    mentioned: set[type] = set()

    def visit(value: Any, depth: int) -> None:
        if id(value) in seen or depth > 6:
            return
        seen.add(id(value))
        if isinstance(value, type):
            if _is_record_class(value):
                mentioned.add(value)
            elif issubclass(value, Function):
                for member in vars(value).values():
                    visit(member, depth + 1)
        elif isinstance(value, MethodType):
            visit(value.__func__, depth)
            visit(value.__self__, depth + 1)
        elif isinstance(value, FunctionType):
            for name in _names(value.__code__):
                if name in value.__globals__:
                    visit(value.__globals__[name], depth + 1)
            for cell in value.__closure__ or ():
                try:
                    visit(cell.cell_contents, depth + 1)
                except ValueError:  # an empty cell
                    continue
            for annotation in value.__annotations__.values():
                visit(annotation, depth + 1)
        elif isinstance(value, list | tuple):
            for item in value[:100]:
                visit(type(item), depth + 1)
                visit(item, depth + 1)
        elif _is_record_class(type(value)):
            mentioned.add(type(value))
        elif hasattr(value, "__dict__") and not isinstance(value, type(sys)):
            visit(type(value), depth + 1)
            for item in vars(value).values():
                visit(item, depth + 1)

    for operator in graph.operators:
        visit(operator.function, 0)
        visit(operator.key_selector, 0)
    for edge in graph.edges:
        visit(edge.selector, 0)
        visit(edge.partitioner, 0)
    candidates = [cls for cls in mentioned if cls not in found and why_unsupported(cls) is None]
    names = Counter(map(name_of, [*found, *candidates]))
    found += sorted((cls for cls in candidates if names[name_of(cls)] == 1), key=name_of)
    return found


def _names(code: Any) -> set[str]:
    """Return all global names that a code object and the ones inside it use."""
    names = set(code.co_names)
    for constant in code.co_consts:
        if hasattr(constant, "co_names"):
            names |= _names(constant)
    return names


def _is_record_class(cls: type) -> bool:
    if cls.__module__.partition(".")[0] == "penstock":
        return False
    return (
        dataclasses.is_dataclass(cls)
        or (issubclass(cls, tuple) and hasattr(cls, "_fields"))
        or (issubclass(cls, enum.Enum) and bool(cls.__members__))
    )


def _culprit(code: JobCode, error: Exception) -> str:
    """Return which function of which operator cannot be pickled, and which part of it."""
    from penstock.runtime.control.code_pickler import dumps

    def fails(value: Any) -> Exception | None:
        try:
            dumps(value)
        except Exception as reason:
            return reason
        return None

    for operator in code.graph.operators:
        for what in ("function", "key_selector"):
            value = getattr(operator, what)
            reason = fails(value)
            if reason is None:
                continue
            where = f"the {what.replace('_', ' ')} of operator {operator.name!r}"
            inside = _inside(value, fails)
            return (
                f"{where} cannot be sent to a worker: {inside}{type(reason).__name__}: {reason}\n"
                f"  functions are sent with all they refer to; open connections, files, locks and "
                f"the like in open() of a rich function, which runs in the worker"
            )
    return f"the program cannot be sent to a worker: {type(error).__name__}: {error}"


def _inside(value: Any, fails: Any) -> str:
    """Return the attribute, captured variable or global that cannot be pickled, if one is found."""
    places: list[tuple[str, Any]] = []
    function = getattr(value, "__func__", value)
    if isinstance(function, FunctionType):
        names = function.__code__.co_freevars
        cells = function.__closure__ or ()
        for name, cell in zip(names, cells, strict=True):
            try:
                places.append((f"captured variable {name!r}", cell.cell_contents))
            except ValueError:
                continue
        places += [
            (f"global {name!r}", function.__globals__[name])
            for name in sorted(_names(function.__code__))
            if name in function.__globals__
        ]
    elif hasattr(value, "__dict__"):
        places += [(f"attribute {name!r}", item) for name, item in vars(value).items()]
    for name, item in places:
        if fails(item) is not None:
            return f"{name} ({type(item).__name__}) cannot be: "
    return ""
