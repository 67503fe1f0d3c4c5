"""Processes that functions of a job start: which end, and which go on."""

import multiprocessing
import os
import subprocess
import sys
from pathlib import Path

import pytest

from penstock import StreamExecutionEnvironment

CHILD = 12


def _ended(pid: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def _returns(number: int) -> list[int]:
    pid = os.fork()
    return [number, _ended(pid) if pid else 0]


def _raises(number: int) -> list[int]:
    pid = os.fork()
    if pid == 0:
        raise ValueError("in the child")
    return [number, _ended(pid)]


def _exits(number: int) -> list[int]:
    pid = os.fork()
    if pid == 0:
        # Calls of its own do not end it.
        os._exit(max(range(CHILD + 1), key=lambda i: i))
    return [number, _ended(pid)]


def _runs(number: int) -> list[int]:
    command = [sys.executable, "-c", f"raise SystemExit({CHILD})"]
    # With a function to call before the program, Python forks in the usual way.
    return [number, subprocess.run(command, preexec_fn=os.getpid).returncode]


def _works(method: str):
    def work(number: int) -> list[int]:
        process = multiprocessing.get_context(method).Process(target=sys.exit, args=(CHILD,))
        process.start()
        process.join()
        return [number, process.exitcode]

    return work


@pytest.mark.parametrize(
    ("function", "code"),
    [
        (_returns, 1),
        (_raises, 1),
        (_exits, CHILD),
        (_runs, CHILD),
        (_works("fork"), CHILD),
        (_works("spawn"), CHILD),
    ],
    ids=["returns", "raises", "exits", "runs a program", "multiprocessing: fork", "spawn"],
)
def test_a_child_of_a_function_ends_where_it_comes_back(function, code: int):
    env = StreamExecutionEnvironment.get_execution_environment()
    records = env.from_collection([1, 2, 3]).map(function).execute_and_collect()
    assert list(records) == [[number, code] for number in (1, 2, 3)]


def test_a_child_of_a_sources_thread_ends_where_it_comes_back(tmp_path: Path):
    def numbers():
        for number in range(3):
            yield _returns(number)

    env = StreamExecutionEnvironment.get_execution_environment()
    records = env.from_iterable(numbers).execute_and_collect()
    assert list(records) == [[number, 1] for number in range(3)]
