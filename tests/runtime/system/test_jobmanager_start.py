"""The JobManagers of a program: the first is a new process, the others are forks of one process."""

import os
import pty
import resource
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from penstock import MapFunction, StreamExecutionEnvironment
from penstock.runtime.system.jobmanager_start import JobManagerStart, JobManagerStarter
from tests.processes.harness import gone, wait_until


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


class Started:
    """A JobManager that waits for its job, and ends because none comes."""

    def __init__(self, starter, output=None, folder=None):
        self._connection, theirs = socket.socketpair()
        with theirs:
            start = JobManagerStart([], [theirs.fileno()], output, folder)
            try:
                self.process = starter.start(start)
            except BaseException:
                self._connection.close()
                raise
        self.pid = self.process.pid
        self.parent = parent_of(self.pid)

    def end(self) -> str:
        self._connection.close()
        return self.process.end()[1]


@pytest.fixture
def start():
    """Return a function that starts JobManagers as a new program does."""
    starter, started = JobManagerStarter(), []

    def one(output=None, folder=None):
        started.append(Started(starter, output, folder))
        return started[-1]

    yield one
    for each in started:
        each.end()
    starter.close()


def test_the_first_is_a_child_and_the_others_are_forks_of_one_process(start):
    first, second, third = (start() for _ in range(3))
    assert first.parent == os.getpid()
    assert second.parent == third.parent != os.getpid()
    assert parent_of(second.parent) == os.getpid()
    assert all(one.process.running() for one in (first, second, third))
    # A fork that was told to go on may not have run yet.
    for one in (first, second):
        wait_until(lambda one=one: os.getsid(one.pid) == one.pid, "it has a session of its own")
    ends = {one.end() for one in (first, second, third)}
    assert len(ends) == 1, "a fork ends as a child does"
    assert not any(one.process.running() for one in (first, second, third))
    wait_until(lambda: gone(third.pid), "the fork is no zombie")


def test_a_fork_can_be_killed_also_after_its_end(start):
    start().end()
    fork = start()
    assert fork.parent != os.getpid()
    fork.process.kill()
    assert fork.end() == fork.process.end()[1] == "was killed by signal 9"
    fork.process.kill()


def test_a_fork_has_the_folder_the_output_and_the_limits_of_now(start, tmp_path):
    start().end()
    start().end()
    (tmp_path / "folder").mkdir()
    soft, hard = resource.getrlimit(resource.RLIMIT_CORE)
    resource.setrlimit(resource.RLIMIT_CORE, (0, hard))
    umask = os.umask(0o027)
    try:
        with (tmp_path / "log").open("wb") as log:
            fork = start(log, str(tmp_path / "folder"))
    finally:
        os.umask(umask)
        resource.setrlimit(resource.RLIMIT_CORE, (soft, hard))
    wait_until(
        lambda: Path(f"/proc/{fork.pid}/cwd").readlink() == tmp_path / "folder", "its folder"
    )
    outputs = [Path(f"/proc/{fork.pid}/fd/{number}").readlink() for number in (1, 2)]
    assert outputs == [tmp_path / "log"] * 2
    limits = Path(f"/proc/{fork.pid}/limits").read_text().splitlines()
    assert next(line for line in limits if "core file" in line).split()[4] == "0"
    # Snapshots and output must not be readable to more users than the program wants.
    assert "Umask:\t0027" in Path(f"/proc/{fork.pid}/status").read_text()
    fork.end()


def test_a_folder_that_is_not_there_is_refused_as_for_a_child(start, tmp_path):
    for _ in range(3):
        with pytest.raises(FileNotFoundError):
            start(folder=str(tmp_path / "not there"))
    start().end()


def test_a_variable_that_an_interpreter_reads_at_its_start_makes_a_new_process(start, monkeypatch):
    start().end()
    assert start().parent != os.getpid()
    with monkeypatch.context() as for_a_while:  # it may be set around the tests, too
        for_a_while.setenv("PYTHONHASHSEED", "7")
        child = start()
    assert child.parent == os.getpid()
    child.end()
    monkeypatch.setenv("OTHER", "7")
    assert start().parent != os.getpid()


def test_if_the_process_that_forks_is_killed_the_next_ones_are_new(start, caplog):
    start().end()
    before = start()
    os.kill(before.parent, signal.SIGKILL)
    wait_until(lambda: parent_of(before.pid) != before.parent, "the process has ended")
    child = start()
    assert "the JobManager is a new process and no fork" in caplog.text
    assert child.parent == os.getpid()
    assert before.process.running()
    assert before.end() == "has ended", "its exit status is not known"
    assert child.end() != "has ended"
    after = start()
    assert after.parent not in (os.getpid(), before.parent)
    after.end()


def test_threads_can_start_jobs_at_the_same_time(start):
    start().end()
    ends = []
    threads = [threading.Thread(target=lambda: ends.append(start().end())) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(ends) == 6
    assert len(set(ends)) == 1


class Where(MapFunction):
    def map(self, value):
        return str(Path.cwd()), os.environ.get("OF_THE_SECOND"), sorted(os.sched_getaffinity(0))


def run_once():
    env = StreamExecutionEnvironment.get_execution_environment()
    with env.from_sequence(1, 1).map(Where()).execute_and_collect() as found:
        return [*found]


def test_workers_have_what_the_program_has_when_it_executes(tmp_path, monkeypatch):
    run_once()
    run_once()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OF_THE_SECOND", "yes")
    processors = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(processors)})
    try:
        assert run_once() == [(str(tmp_path), "yes", [min(processors)])]
    finally:
        os.sched_setaffinity(0, processors)


PROGRAM = """
import os, signal, socket, sys
from penstock.runtime.system.jobmanager_start import JobManagerStart, jobmanager_starter

def start():
    ours, theirs = socket.socketpair()
    with theirs:
        return jobmanager_starter.start(JobManagerStart([], [theirs.fileno()])), ours

first, one = start()
second, other = start()
parent = int(open(f"/proc/{second.pid}/stat").read().rpartition(")")[2].split()[1])
child = os.fork()
if child == 0:
    third, its = start()
    mine = int(open(f"/proc/{third.pid}/stat").read().rpartition(")")[2].split()[1]) == os.getpid()
    its.close()
    third.end()
    os._exit(not mine)
_, status = os.waitpid(child, 0)
print(parent, second.pid, status, flush=True)
if "killed" in sys.argv:
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize("end", ["ends", "killed"])
def test_the_process_that_forks_ends_with_the_program(end):
    command = [sys.executable, "-c", PROGRAM, end]
    program = subprocess.run(command, stdout=subprocess.PIPE, check=False)
    assert program.returncode == (0 if end == "ends" else -signal.SIGKILL)
    parent, fork, status = map(int, program.stdout.split())
    assert status == 0, "a forked child of the program has a process of its own"
    wait_until(lambda: gone(parent), "the process that forks ends")
    wait_until(lambda: gone(fork), "the JobManager ends")


PRINTING = """
import sys, threading
from pathlib import Path
from penstock import StreamExecutionEnvironment

gate = sys.argv[1]

def show(value):
    print("shown by job", value)
    while value == 2 and not Path(gate).exists():
        threading.Event().wait(0.01)
    return value

for job in (1, 2):
    env = StreamExecutionEnvironment.get_execution_environment()
    print([*env.from_sequence(job, job).map(show).execute_and_collect()])
"""


def test_what_a_function_of_a_later_job_prints_appears_at_once_on_a_terminal(tmp_path):
    ours, terminal = pty.openpty()
    with os.fdopen(ours, "rb", buffering=0) as read, os.fdopen(terminal, "wb") as write:
        command = [sys.executable, "-c", PRINTING, str(tmp_path / "gate")]
        environment = {**os.environ, "PYTHONUNBUFFERED": ""}
        program = subprocess.Popen(command, stdout=write, stderr=write, env=environment)
        shown = b""
        while b"shown by job 2" not in shown:
            shown += read.read(1000)
        (tmp_path / "gate").touch()
        assert program.wait(120) == 0
