"""Show errors of a program without the frames of the engine, and with advice.

The frames of the engine stand between the line of the program and the message, and they say nothing
about the program. `shortened` leaves them out while an error is printed. The error itself keeps
them, for debuggers. The environment variable `PENSTOCK_TRACEBACK=full` switches that off.

`install` does both for errors that nothing catches, in a program and in a notebook. The command
line does it for the job files that it runs.
"""

from __future__ import annotations

import inspect
import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FunctionType, TracebackType
from typing import Protocol

from penstock.dataflow.errors import PenstockError, ProtocolError

#: The environment variable that shows all frames, with the value "full".
VARIABLE = "PENSTOCK_TRACEBACK"
_PACKAGE = str(Path(__file__).parents[1]) + os.sep
_WRONG_CALL = re.compile(r"([\w.]+)\(\) (got an unexpected|got multiple|missing|takes) ")

_installed = False


def install() -> None:
    """Shorten the tracebacks of errors that nothing catches in this process.

    Other hooks that the program has set are called as before. Errors of other packages, and errors
    of the engine itself, keep all frames.
    """
    global _installed
    if _installed:
        return
    _installed = True
    before = sys.excepthook

    def show(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        with _prepared(error):
            before(kind, error, error.__traceback__ if _is_of_program(error) else trace)

    sys.excepthook = show
    _install_in_notebook()


class _Shell(Protocol):
    """The shell of a notebook, as far as it is used here."""

    def showtraceback(self, error: object, /, *, tb_offset: object) -> None:
        """Show a traceback."""


def _install_in_notebook() -> None:
    # IPython is not a dependency. If a notebook runs, it has already imported this module.
    ipython = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    if shell is None or getattr(shell, "custom_exceptions", None):
        return

    def show(
        shell: _Shell, kind: object, error: BaseException, _: object, tb_offset: object = None
    ) -> None:
        with _prepared(error):
            shell.showtraceback((kind, error, error.__traceback__), tb_offset=tb_offset)

    shell.set_custom_exc((PenstockError,), show)


@contextmanager
def _prepared(error: BaseException) -> Iterator[None]:
    add_advice(error)
    if not _is_of_program(error):
        yield
        return
    with shortened(error):
        yield


@contextmanager
def shortened(error: BaseException) -> Iterator[None]:
    """Hide the frames of the engine in an error and its causes while the `with` block runs.

    An error keeps its traceback if all of its frames are frames of the engine.
    """
    if os.environ.get(VARIABLE, "").lower() == "full":
        yield
        return
    errors = list(_with_causes(error))
    full = [one.__traceback__ for one in errors]
    for one in errors:
        one.__traceback__ = _without_engine(one.__traceback__) or one.__traceback__
    try:
        yield
    finally:
        for one, trace in zip(errors, full, strict=True):
            one.__traceback__ = trace


def is_engine_frame(filename: str) -> bool:
    """Return whether a frame with this file name belongs to the engine."""
    return filename.startswith(_PACKAGE)


def ends_in_engine(error: BaseException) -> bool:
    """Return whether a function of the engine raised an error."""
    frames = list(_frames(error.__traceback__))
    return bool(frames) and is_engine_frame(frames[-1].tb_frame.f_code.co_filename)


def add_advice(error: BaseException, program: str | None = None) -> None:
    """Add a note to an error of Python if the engine knows what the program should do.

    Arguments:
        error: the error.
        program: the path of the program. If it is None, it is the file of the module `__main__`.
    """
    if isinstance(error, TypeError):
        _add_note(error, _signature_note(error))
    elif isinstance(error, ImportError | AttributeError):
        _add_note(error, _shadowing_note(error, program))


def _add_note(error: BaseException, note: str | None) -> None:
    if note is not None and note not in getattr(error, "__notes__", ()):
        error.add_note(note)


def _is_of_program(error: BaseException) -> bool:
    return isinstance(error, PenstockError) and not isinstance(error, ProtocolError)


def _with_causes(error: BaseException) -> Iterator[BaseException]:
    found: list[BaseException] = []
    waiting: list[BaseException | None] = [error]
    while waiting:
        one = waiting.pop()
        if one is not None and not any(one is other for other in found):
            found.append(one)
            waiting += [one.__cause__, one.__context__]
    yield from found


def _without_engine(trace: TracebackType | None) -> TracebackType | None:
    """Return a copy of a traceback without the frames of the engine."""
    made: TracebackType | None = None
    for one in reversed(list(_frames(trace))):
        if not is_engine_frame(one.tb_frame.f_code.co_filename):
            made = TracebackType(made, one.tb_frame, one.tb_lasti, one.tb_lineno)
    return made


def _frames(trace: TracebackType | None) -> Iterator[TracebackType]:
    while trace is not None:
        yield trace
        trace = trace.tb_next


# ---- advice


def _signature_note(error: TypeError) -> str | None:
    """Return the parameters of the function of Penstock that was called with wrong arguments.

    Python's message has the qualified name of the function, but neither its module nor its
    parameters.
    """
    found = _WRONG_CALL.match(str(error))
    if found is None:
        return None
    owner, *path = found[1].split(".")
    for name, module in list(sys.modules.items()):
        if not name.startswith("penstock."):
            continue
        target: object = vars(module).get(owner)
        for part in path:
            target = inspect.getattr_static(target, part, None)
        target = getattr(target, "__func__", target)
        if isinstance(target, FunctionType) and target.__module__.startswith("penstock."):
            if _means_another(error, owner, vars(module).get(owner)):
                return None
            shown = path[-2] if path[-1:] == ["__init__"] and len(path) > 1 else found[1]
            shown = owner if path == ["__init__"] else shown.rpartition(".")[2]
            return f"Note: {shown} takes {_parameters(target, bool(path))}"
    return None


def _means_another(error: TypeError, name: str, ours: object) -> bool:
    """Return whether the code that made the call has something of its own with this name."""
    frames = list(_frames(error.__traceback__))
    if not frames:
        return False
    frame = frames[-1].tb_frame
    used = {**frame.f_globals, **frame.f_locals}.get(name)
    return used is not None and used is not ours


def _parameters(function: FunctionType, is_method: bool) -> str:
    """Return the parameters of a function without their types."""
    signature = inspect.signature(function)
    parameters = list(signature.parameters.values())[is_method:]
    bare = [one.replace(annotation=inspect.Parameter.empty) for one in parameters]
    return str(inspect.Signature(bare))


def _shadowing_note(error: BaseException, program: str | None) -> str | None:
    """Return advice if a file of the program has the name of a module of Python.

    Such a module is loaded, or its import has failed with this error.
    """
    main = program or getattr(sys.modules.get("__main__"), "__file__", None)
    if main is None:
        return None
    files = {
        name: getattr(sys.modules[name], "__file__", None)
        for name in sys.stdlib_module_names & sys.modules.keys()
    }
    for frame in _frames(error.__traceback__):
        code, name = frame.tb_frame.f_code, str(frame.tb_frame.f_globals.get("__name__"))
        if code.co_name == "<module>" and name in sys.stdlib_module_names:
            files[name] = code.co_filename
    folder = Path(main).resolve().parent
    for name, file in files.items():
        if file is not None and Path(file).resolve().parent == folder:
            return (
                f"Note: {file} has the name of Python's own module {name}, so that other modules "
                f"import it instead: rename the file"
            )
    return None
