"""The job's code on its way to the workers: the plan, the functions, the record classes.

Only code is pickled (with cloudpickle), only from a job to its own processes, and only over an
authenticated connection. Records and state are never pickled. A function that cannot be pickled is
found before the job starts, and the error names it.
"""

from __future__ import annotations

import io
import os
import sys
from dataclasses import dataclass, field
from types import FunctionType
from typing import Any

from penstock.dataflow.config import JobConfig
from penstock.dataflow.errors import GraphError, JobError, PenstockError
from penstock.dataflow.graph.execution_graph import ExecutionGraph
from penstock.dataflow.graph.job_graph import JobGraph
from penstock.runtime.control.record_class_search import global_names
from penstock.runtime.user_code.process_logging import LoggingConfig

__all__ = ["JobCode", "pack", "unpack"]


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
    """Return the code as bytes. Raise `GraphError` for a part that cannot be pickled."""
    # Imported here, since workers never pickle and cloudpickle takes time to import.
    from penstock.runtime.control.code_pickler import dumps

    try:
        return dumps(code)
    except Exception as error:
        raise GraphError(_culprit(code, error)) from error


def unpack(data: bytes) -> JobCode:
    """Return the code in `data`. Raise `JobError` if modules cannot be imported."""
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
    """Return which attribute, captured variable or global cannot be pickled."""
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
            for name in sorted(global_names(function.__code__))
            if name in function.__globals__
        ]
    elif hasattr(value, "__dict__"):
        places += [(f"attribute {name!r}", item) for name, item in vars(value).items()]
    for name, item in places:
        if fails(item) is not None:
            return f"{name} ({type(item).__name__}) cannot be: "
    return ""
