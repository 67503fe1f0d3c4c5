"""Jobs that run inside the process of the program, beside the same jobs in several processes."""

import asyncio
import bdb
import os
import pdb
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import trio

from penstock import FileSink, JobError, RestartStrategies, StreamExecutionEnvironment
from penstock.dataflow.nested_jobs import running_as
from penstock.dataflow.program import RunOptions, run_options
from penstock.runtime.user_code import breakpoints
from penstock.testing.fixtures import penstock_in_process  # noqa: F401
from tests.processes.harness import PATIENCE

ROOT = Path(__file__).resolve().parents[3]
LINES = ["to be or", "not to be", "that is"] * 20


def environment(parallelism: int = 2) -> StreamExecutionEnvironment:
    return StreamExecutionEnvironment.get_execution_environment().set_parallelism(parallelism)


def words(env: StreamExecutionEnvironment) -> Any:
    return (
        env.from_collection(LINES)
        .flat_map(lambda line: line.split())
        .map(lambda word: (word, 1))
        .key_by(lambda pair: pair[0])
        .reduce(lambda one, other: (one[0], one[1] + other[1]))
    )


def count_words() -> dict[str, int]:
    return dict(sorted(words(environment()).execute_and_collect(in_process=True)))


COUNTED = {"be": 40, "is": 20, "not": 20, "or": 20, "that": 20, "to": 40}


def test_the_output_is_that_of_several_processes():
    ours = sorted(words(environment()).execute_and_collect(in_process=True))
    assert ours == sorted(words(environment()).execute_and_collect())


def test_all_tasks_run_in_the_process_and_the_thread_of_the_program(penstock_in_process):  # noqa: F811
    stream = environment(3).from_sequence(1, 30).rebalance()
    where = stream.map(lambda _: (os.getpid(), threading.get_ident())).execute_and_collect()
    assert set(where) == {(os.getpid(), threading.get_ident())}


def test_an_unbounded_job_ends_when_its_iterator_is_closed():
    stream = environment(1).from_generator(lambda number: number)
    assert stream.execute_and_collect(limit=5, in_process=True) == [0, 1, 2, 3, 4]


class Stopped(Exception):
    pass


def stop_at_a_snapshot(event: dict[str, Any]) -> None:
    if event["event"] == "snapshot":
        raise Stopped


def sums(folder: Path, in_process: bool) -> Any:
    go = folder / "go"

    def slowly(number: int) -> int:
        if not go.exists():
            threading.Event().wait(0.002)
        return number

    env = environment().enable_checkpointing(20).set_in_process(in_process)
    env.get_checkpoint_config().set_checkpoint_storage_dir(str(folder / "job"))
    numbers = env.from_sequence(1, 3_000).map(slowly).key_by(lambda number: number % 3)
    running = numbers.reduce(lambda one, other: one + other)
    running.sink_to(FileSink(str(folder / "out")))
    return env.execute("sums")


@pytest.mark.parametrize("first", [True, False], ids=["to processes", "from processes"])
def test_a_job_goes_on_in_the_other_way_of_running_it(first: bool, tmp_path: Path):
    with run_options(RunOptions(progress=stop_at_a_snapshot)), pytest.raises(Stopped):
        sums(tmp_path, first)
    (tmp_path / "go").touch()
    with run_options(RunOptions(resume="newest")):
        assert not sums(tmp_path, not first).stopped
    files = (tmp_path / "out").glob("part-*")
    lines = [int(line) for file in files for line in file.read_text().splitlines()]
    totals = [sum(range(start, 3_001, 3)) for start in (1, 2, 3)]
    assert len(lines) == 3_000 and len(set(lines)) > 2_900 and set(totals) <= set(lines)


def fail(number: int) -> float:
    return 1 / (number - 7)


def test_an_error_has_the_traceback_of_the_function_first():
    stream = environment().from_sequence(1, 20).map(fail)
    with pytest.raises(JobError, match="ZeroDivisionError in operator 'Map'") as caught:
        list(stream.execute_and_collect(in_process=True))
    first, *lines = str(caught.value.user_traceback).splitlines()
    assert first == "Traceback (most recent call last):"
    assert __file__ in lines[0] and lines[0].endswith("in fail")
    assert caught.value.record == "7"


def test_a_job_restarts_after_a_function_has_raised(tmp_path: Path):
    failed = tmp_path / "failed"

    def fail_once(number: int) -> int:
        if number == 50 and not failed.exists():
            failed.touch()
            raise ValueError("once")
        return number

    env = environment().enable_checkpointing(10)
    env.set_restart_strategy(RestartStrategies.fixed_delay_restart(1, 0))
    stream = env.from_sequence(1, 100).map(fail_once)
    assert sorted(stream.execute_and_collect(in_process=True)) == list(range(1, 101))
    assert failed.exists()


def test_a_function_may_stand_still_for_longer_than_a_worker_may_be_silent():
    def stand(number: int) -> int:
        if number == 1:
            threading.Event().wait(0.3)
        return number

    env = environment().enable_checkpointing(5)
    env.set_restart_strategy(RestartStrategies.no_restart())
    config = env.config
    config.heartbeat_seconds, config.heartbeat_timeout_seconds = 0.01, 0.02
    config.checkpoint_timeout_seconds = 0.02
    stream = env.from_sequence(1, 10).map(stand)
    assert len(list(stream.execute_and_collect(in_process=True))) == 10


def test_ctrl_c_stops_the_job_with_a_last_snapshot(tmp_path: Path):
    def interrupt(number: int) -> int:
        if number == 500:
            signal.raise_signal(signal.SIGINT)
        return number

    env = environment().enable_checkpointing(3_600_000)
    env.get_checkpoint_config().set_checkpoint_storage_dir(str(tmp_path / "job"))
    env.from_generator(lambda number: number).map(interrupt).filter(lambda _: False).print()
    kinds: list[str] = []

    def take(event: dict[str, Any]) -> None:
        kinds.append(event["event"])

    with run_options(RunOptions(progress=take)), pytest.raises(KeyboardInterrupt):
        env.execute(in_process=True)
    assert kinds.count("snapshot") == 1 and kinds[-1] == "finished"


def test_a_second_ctrl_c_ends_a_function_that_never_returns():
    def never_return(_: int) -> None:
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)
        threading.Event().wait(3600)

    env = environment()
    env.from_sequence(1, 10).map(never_return).print()
    with pytest.raises(KeyboardInterrupt):
        env.execute(in_process=True)


# ---- from other places


def test_it_runs_in_a_thread():
    counted: list[dict[str, int]] = []
    thread = threading.Thread(target=lambda: counted.append(count_words()))
    thread.start()
    thread.join()
    assert counted == [COUNTED]


async def count_words_in_a_loop() -> dict[str, int]:
    return count_words()


@pytest.mark.parametrize("run", [asyncio.run, lambda main: trio.run(lambda: main)])
def test_it_runs_inside_an_event_loop(run: Callable[[Any], Any]):
    assert run(count_words_in_a_loop()) == COUNTED


# ---- debuggers


def doubled(number: int) -> int:
    if number > 1:
        number += number
    return number


def test_lines_of_functions_are_seen_by_coverage():
    seen: set[tuple[str, int]] = set()

    def trace(frame: Any, event: str, _: Any) -> Any:
        code = frame.f_code
        if code.co_filename != __file__:
            return None
        if event == "line":
            seen.add((code.co_name, frame.f_lineno - code.co_firstlineno))
        return trace

    stream = environment(1).from_sequence(1, 3).map(doubled).map(lambda number: number + 1)
    before = sys.gettrace()
    sys.settrace(trace)
    try:
        records = list(stream.execute_and_collect(in_process=True))
    finally:
        sys.settrace(before)
    assert records == [2, 5, 7]
    assert {("doubled", 1), ("doubled", 2), ("doubled", 3), ("<lambda>", 0)} <= seen


JOB = """\
from penstock import StreamExecutionEnvironment

def shout(word):
    loud = word.upper()
    {stop}
    return loud

env = StreamExecutionEnvironment.get_execution_environment()
env.from_collection(["one", "two"]).map(shout).print()
env.execute()
"""


def run_command(folder: Path, stop: str, *options: str, answers: str = "") -> Any:
    (folder / "job.py").write_text(JOB.format(stop=stop))
    return subprocess.run(
        [sys.executable, "-m", "penstock", "run", "job.py", *options],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        input=answers,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )


def test_a_breakpoint_stops_in_a_function_of_a_job_in_one_process(tmp_path: Path):
    ran = run_command(tmp_path, "breakpoint()", "--in-process", answers="p word, loud\nc\nc\n")
    assert ran.returncode == 0, ran.stderr
    assert f"{tmp_path / 'job.py'}(6)shout()" in ran.stdout
    assert "-> return loud" in ran.stdout
    assert "('one', 'ONE')" in ran.stdout
    assert "TWO" in ran.stdout


def test_quitting_the_debugger_ends_the_job(tmp_path: Path):
    options = ("--in-process", "--checkpoint-interval", "1h")
    ran = run_command(tmp_path, "breakpoint()", *options, answers="q\n")
    assert ran.returncode == 1
    assert "Error: the debugger was quit" in ran.stderr
    assert ran.stdout.count("-> return loud") == 1


def test_a_breakpoint_in_a_worker_process_says_what_to_do(tmp_path: Path):
    ran = run_command(tmp_path, "breakpoint()")
    assert ran.returncode == 1
    assert "breakpoint() needs the job in one process: env.execute(in_process=True)" in ran.stderr
    assert "job.py" in ran.stderr and "in shout" in ran.stderr


def test_a_debugger_that_finds_no_terminal_in_a_worker_says_what_to_do():
    assert breakpoints.quit_message(bdb.BdbQuit()) == "the debugger was quit"
    with running_as("a worker"):
        message = breakpoints.quit_message(bdb.BdbQuit())
    assert str(message).startswith("pdb needs the job in one process")
    assert breakpoints.quit_message(ValueError()) is None


def test_another_debugger_is_called_in_a_worker_process(monkeypatch: pytest.MonkeyPatch):
    with pytest.raises(JobError, match=r"penstock run --in-process"):
        breakpoints._refuse()
    monkeypatch.setattr(pdb, "runcall", lambda: "called", raising=True)
    monkeypatch.setenv("PYTHONBREAKPOINT", "pdb.runcall")
    assert breakpoints._refuse() == "called"
    monkeypatch.setenv("PYTHONBREAKPOINT", "0")
    assert breakpoints._refuse() is None
