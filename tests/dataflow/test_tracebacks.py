"""Errors are shown without the frames of the engine, and with advice."""

from __future__ import annotations

import subprocess
import sys
import traceback
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

import penstock
from penstock import GraphError, ProtocolError, StreamExecutionEnvironment, ValueStateDescriptor
from penstock.dataflow import tracebacks

PACKAGE = str(Path(penstock.__file__).parent)


def refused() -> GraphError:
    env = StreamExecutionEnvironment.get_execution_environment()
    with pytest.raises(GraphError) as raised:
        env.from_collection([1]).process(len)  # type: ignore[call-overload]
    return raised.value


def files(error: BaseException) -> list[str]:
    return [frame.filename for frame in traceback.extract_tb(error.__traceback__)]


def test_frames_of_the_engine_are_hidden_while_an_error_is_shown() -> None:
    error = refused()
    full = files(error)
    assert any(file.startswith(PACKAGE) for file in full)
    with tracebacks.shortened(error):
        assert files(error) == [file for file in full if not file.startswith(PACKAGE)] == [__file__]
    assert files(error) == full


def test_causes_are_shortened_too() -> None:
    cause = refused()
    error = GraphError("outer")
    error.__cause__ = cause
    with tracebacks.shortened(error):
        assert files(cause) == [__file__]


def test_a_variable_shows_all_frames(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENSTOCK_TRACEBACK", "full")
    error = refused()
    full = files(error)
    with tracebacks.shortened(error):
        assert files(error) == full


def shown(monkeypatch: pytest.MonkeyPatch, error: BaseException) -> list[str]:
    """Return the files of the traceback that the hook before Penstock's gets."""
    seen: list[list[str]] = []
    monkeypatch.setattr(sys, "excepthook", lambda kind, error, trace: seen.append(files(error)))
    monkeypatch.setattr(tracebacks, "_installed", False)
    tracebacks.install()
    sys.excepthook(type(error), error, error.__traceback__)
    (found,) = seen
    return found


def test_an_uncaught_error_goes_to_the_former_hook_without_frames_of_the_engine(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert shown(monkeypatch, refused()) == [__file__]


def test_errors_of_the_engine_itself_keep_their_frames(monkeypatch: pytest.MonkeyPatch) -> None:
    error = ProtocolError("broken")
    error.__traceback__ = refused().__traceback__
    assert any(file.startswith(PACKAGE) for file in shown(monkeypatch, error))


def test_a_notebook_shows_errors_without_frames_of_the_engine(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found: list[Any] = []

    class Shell(SimpleNamespace):
        custom_exceptions: tuple[Any, ...] = ()

        def set_custom_exc(self, kinds: Any, handler: Any) -> None:
            assert kinds == (penstock.PenstockError,)
            self.handler = handler

        def showtraceback(self, error: Any, tb_offset: Any) -> None:
            found.append(files(error[1]))

    shell = Shell()
    ipython = ModuleType("IPython")
    monkeypatch.setattr(ipython, "get_ipython", lambda: shell, raising=False)
    monkeypatch.setitem(sys.modules, "IPython", ipython)
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)
    monkeypatch.setattr(tracebacks, "_installed", False)
    tracebacks.install()
    error = refused()
    shell.handler(shell, type(error), error, error.__traceback__)
    assert found == [[__file__]]


def test_wrong_arguments_of_a_method_are_answered_with_its_parameters() -> None:
    stream: Any = StreamExecutionEnvironment.get_execution_environment().from_collection([1])
    with pytest.raises(TypeError) as raised:
        stream.map(function=len)
    tracebacks.add_advice(raised.value)
    tracebacks.add_advice(raised.value)
    assert raised.value.__notes__ == ["Note: map takes (func, output_type=None)"]
    descriptor: Any = ValueStateDescriptor
    with pytest.raises(TypeError) as raised:
        descriptor("a", type=int)
    tracebacks.add_advice(raised.value)
    assert raised.value.__notes__ == [
        "Note: ValueStateDescriptor takes (name, value_type_info=None, *, aliases=(), version=1, "
        "migrate=None)"
    ]


class Counter:
    """Has the name of a class of Penstock."""


def test_a_function_of_the_program_with_a_name_of_penstock_has_no_advice() -> None:
    with pytest.raises(TypeError) as raised:
        Counter(1)  # type: ignore[call-arg]
    raised.value.args = ("Counter.__init__() takes 1 positional argument but 2 were given",)
    tracebacks.add_advice(raised.value)
    assert not hasattr(raised.value, "__notes__")


def test_other_type_errors_have_no_advice() -> None:
    for call in (lambda: len(), lambda: len(1), lambda: json_like(x=1)):
        with pytest.raises(TypeError) as raised:
            call()
        tracebacks.add_advice(raised.value)
        assert not hasattr(raised.value, "__notes__")


def json_like() -> None:
    pass


@pytest.mark.parametrize("guarded", [False, True])
def test_a_file_with_the_name_of_a_module_of_python_is_named(tmp_path: Path, guarded: bool) -> None:
    job = tmp_path / "queue.py"
    end = 'if __name__ == "__main__":\n    env.execute()' if guarded else "env.execute()"
    job.write_text(
        "from penstock import StreamExecutionEnvironment\n"
        "env = StreamExecutionEnvironment.get_execution_environment()\n"
        "env.from_collection([1]).print()\n" + end
    )
    for command in ([], ["-m", "penstock", "run"]):
        done = subprocess.run([sys.executable, *command, job], capture_output=True, text=True)
        assert done.returncode == 1
        assert f"{job} has the name of Python's own module queue" in done.stderr


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("TumblingWindow", "TumblingEventTimeWindows or"),
        ("FileSouce", "FileSource"),
        ("StreamEnvironment", "StreamExecutionEnvironment"),
    ],
)
def test_an_import_of_a_similar_name_says_what_was_meant(name: str, meant: str) -> None:
    with pytest.raises(ImportError, match=f"no {name}: did you mean {meant}"):
        getattr(penstock, name)
    assert not hasattr(penstock, "Nothing")
    assert not hasattr(penstock, "connector")
