"""Pack the job's code for its workers: the functions and the record classes.

Code is pickled with cloudpickle. It is sent only to the job's own processes, over authenticated
connections. Records and state are never pickled. If a function cannot be pickled, `pack` raises an
error that names the function, before the job starts.
"""

from __future__ import annotations

import io
import os
import sys
from dataclasses import dataclass, field, replace
from types import FunctionType
from typing import Any

from penstock.dataflow.config import JobConfig
from penstock.dataflow.errors import GraphError, JobError, PenstockError
from penstock.dataflow.graph.execution_graph import ExecutionGraph
from penstock.dataflow.graph.job_graph import JobGraph
from penstock.runtime.control.record_class_search import global_names
from penstock.runtime.user_code.process_logging import LoggingConfig


@dataclass
class JobCode:
    """The parts of a program that the processes of its job need.

    Arguments:
        graph: the job graph, with the user's functions.
        plan: the execution graph. It is sent separately, and the receiver sets it.
        config: the job's settings.
        types: the record classes, in the order of their numbers.
        search_path: the `sys.path` of the program.
        folder: the working directory of the program.
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
    # The import is local, because cloudpickle takes time to import and workers do not need it.
    from penstock.runtime.control.code_pickler import dumps

    try:
        return dumps(code)
    except Exception as error:
        raise GraphError(_culprit(code, error)) from error


def unpack(data: bytes, parallelism: int | None = None) -> JobCode:
    """Return the code in `data`.

    Raise `JobError` if it cannot be unpickled, for example because a module cannot be imported.

    Arguments:
        data: the code, from `pack`.
        parallelism: the parallelism of the job; None for that of the program.
    """
    import pickle

    try:
        code = pickle.load(io.BytesIO(data))
    except PenstockError:
        raise  # The pickle has imported a module of the program, which has called `execute()`.
    except Exception as error:
        raise JobError(
            f"the job's code cannot be loaded in a worker: {type(error).__name__}: {error}\n"
            f"  modules that the program imports must be importable in its workers, too"
        ) from error
    assert isinstance(code, JobCode)
    if parallelism is not None:
        code.config = replace(code.config, parallelism=parallelism)
    return code


def _culprit(code: JobCode, error: Exception) -> str:
    """Return an error message that names the function that cannot be pickled."""
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
    """Return a text that names the part of a function that cannot be pickled.

    The part is an attribute, a captured variable or a global. The text is empty if all of them can
    be pickled.
    """
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
