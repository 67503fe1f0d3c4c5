"""Workers that are forks: what they begin with, how they end, and the end of the server."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.processes.harness import gone, wait_until

#: A module with the `run_worker` of this test, and a program that starts workers with it.
_WORKER = """
import json, os, sys, threading
from pathlib import Path

def run_worker(spec):
    out = Path(spec.address)
    found = {
        "cwd": os.getcwd(),
        "session": os.getsid(0) == os.getpid(),
        "threads": threading.active_count(),
        "descriptors": sorted(os.listdir("/proc/self/fd")),
        "variable": os.environ.get("OF_THE_JOB"),
        "stdin": sys.stdin.read(),
        "random": __import__("random").random(),
    }
    out.with_suffix(".tmp").write_text(json.dumps(found))
    out.with_suffix(".tmp").rename(out)
    if spec.worker == 7:
        while True:
            __import__("time").sleep(0.01)
    if spec.worker == 3:
        raise ValueError("of worker 3")
    os._exit(spec.worker)
"""
_PROGRAM = """
import json, os, sys, trio
from pathlib import Path
from penstock.runtime.system.fork_server import ForkServer
from penstock.runtime.system.launcher import WorkerSpec

secret = os.open("/dev/null", os.O_RDONLY)
server = ForkServer.start("the_worker", without=[secret])
os.environ["OF_THE_JOB"] = "set after the fork of the server"

def spec(number, folder):
    return WorkerSpec(str(Path.cwd() / f"{number}.json"), b"token", number, 1, 1.0, folder=folder)

async def main():
    ended = {}
    for number in (0, 3, 5):
        worker = await server.launch(spec(number, str(Path.cwd() / "folder")))
        ended[number] = [await worker.wait(), worker.crashed]
    worker = await server.launch(spec(7, None))
    while not Path("7.json").exists():
        await trio.sleep(0.01)
    worker.kill()
    ended[7] = [await worker.wait(), worker.crashed]
    worker.kill()  # does nothing
    if sys.argv[1:] == ["stay"]:
        last = await server.launch(spec(7, None))
        print(json.dumps([os.getpid(), server.pid, last.pid]), flush=True)
        await trio.sleep_forever()
    os.kill(server.pid, 9)
    print(json.dumps([secret, ended]))

trio.run(main)
server.close()
"""
_JOB = """
import os, signal
from pathlib import Path
from penstock import RestartStrategies, StreamExecutionEnvironment

def kill_the_server_and_itself(i):
    if i == 5 and not Path("killed").exists():
        Path("killed").touch()
        os.kill(os.getppid(), signal.SIGKILL)
        os.kill(os.getpid(), signal.SIGKILL)
    return i

env = StreamExecutionEnvironment.get_execution_environment()
env.enable_checkpointing(100)
env.set_restart_strategy(RestartStrategies.fixed_delay_restart(3, 10))
numbers = env.from_collection(range(10)).map(kill_the_server_and_itself)
print(sorted(numbers.execute_and_collect()))
"""


@pytest.fixture
def program(tmp_path: Path) -> list[str]:
    (tmp_path / "the_worker.py").write_text(_WORKER)
    (tmp_path / "program.py").write_text(_PROGRAM)
    (tmp_path / "folder").mkdir()
    return [sys.executable, "program.py"]


def test_a_worker_begins_as_in_a_new_process_and_its_end_is_known(
    program: list[str], tmp_path: Path
):
    done = subprocess.run(program, cwd=tmp_path, env=_env(tmp_path), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    secret, ended = json.loads(done.stdout)
    assert ended == {
        "0": ["exited with code 0", False],
        "3": ["exited with code 1", True],
        "5": ["exited with code 5", True],
        "7": ["was killed by signal 9", False],
    }
    assert "ValueError: of worker 3" in done.stderr
    workers = [json.loads((tmp_path / f"{n}.json").read_text()) for n in (0, 3, 5, 7)]
    for worker in workers:
        assert worker["session"] and worker["threads"] == 1 and worker["stdin"] == ""
        assert worker["variable"] == "set after the fork of the server"
        # Nothing of the JobManager but the three standard files; the last one lists the folder.
        assert len(worker["descriptors"]) == 4 and str(secret) not in worker["descriptors"][:3]
    assert {worker["cwd"] for worker in workers[:3]} == {str(tmp_path / "folder")}
    assert len({worker["random"] for worker in workers}) == 4


def test_the_server_ends_with_its_jobmanager_and_leaves_no_zombie(
    program: list[str], tmp_path: Path
):
    with subprocess.Popen(
        [*program, "stay"], cwd=tmp_path, env=_env(tmp_path), stdout=subprocess.PIPE
    ) as running:
        assert running.stdout is not None
        _, server, worker = json.loads(running.stdout.readline())
        running.kill()
    # The worker of a supervised job goes on, and the server remains its parent.
    assert not gone(server)
    os.kill(worker, signal.SIGKILL)
    wait_until(lambda: gone(server), "the server has ended")
    assert not Path(f"/proc/{worker}").exists()


def test_a_job_goes_on_with_new_processes_if_the_server_is_killed(tmp_path: Path):
    (tmp_path / "job.py").write_text(_JOB)
    done = subprocess.run(
        [sys.executable, "job.py"],
        cwd=tmp_path,
        env=_env(tmp_path),
        capture_output=True,
        text=True,
    )
    assert str(list(range(10))) in done.stdout, done.stdout + done.stderr
    assert (tmp_path / "killed").exists()
    assert "the fork server is gone" in done.stderr


def _env(folder: Path) -> dict[str, str]:
    root = Path(__file__).resolve().parents[3]
    return {**os.environ, "PYTHONPATH": f"{root}:{folder}"}


_REFUSED = """
import json, os, trio
from pathlib import Path
from penstock.runtime.system import fork_server
from penstock.runtime.system.launcher import ProcessLauncher, WorkerSpec

fork_server._fork = lambda: None  # as if the system refused each fork of the server
server = fork_server.ForkServer.start("the_worker", without=[])
spec = WorkerSpec("nowhere", b"token", 0, 1, 1.0)

async def main():
    asked = []

    async def launch(spawning, spec):
        asked.append(spec.worker)
        raise OSError("no more processes")

    ProcessLauncher.launch = launch
    refused = []
    for _ in range(2):
        await server.stand_by(1, spec, b"")
        try:
            await server.launch(spec)
        except OSError as error:
            refused.append(str(error))
    os.kill(server.pid, 0)  # it is still there
    print(json.dumps([asked, refused]))

trio.run(main)
server.close()
"""


def test_a_fork_that_the_system_refuses_is_an_error_of_the_launch_and_the_server_stays(
    program: list[str], tmp_path: Path
):
    (tmp_path / "program.py").write_text(_REFUSED)
    done = subprocess.run(program, cwd=tmp_path, env=_env(tmp_path), capture_output=True, text=True)
    assert json.loads(done.stdout) == [[0, 0], ["no more processes", "no more processes"]]
    assert not done.stderr
