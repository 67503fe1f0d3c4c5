"""A job service with real processes, in a folder of its own, for tests."""

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

from click.testing import CliRunner

from penstock.cli import main
from tests.processes.harness import PATIENCE, committed, compared, wait_until

ENDLESS = """
import sys
from penstock import StreamExecutionEnvironment

env = StreamExecutionEnvironment.get_execution_environment()
env.enable_checkpointing(50)
counts = env.from_generator(lambda i: i, None if sys.argv[1] == "endless" else 20, 500)
counts.key_by(lambda i: i % 3).reduce(lambda a, b: a + b).print()
env.execute("numbers")
print("after execute")
"""

FAILING = """
from penstock import StreamExecutionEnvironment

env = StreamExecutionEnvironment.get_execution_environment()
env.from_collection([4, 0]).map(lambda i: 8 // i).print()
env.execute("failing")
"""

SENDING = """
import sent_factor
from penstock import StreamExecutionEnvironment

env = StreamExecutionEnvironment.get_execution_environment()
env.from_collection([6]).map(lambda i: i * sent_factor.FACTOR).print()
env.execute("sending")
"""


COUNTING = """
import sys, threading
from pathlib import Path
from penstock import FileSink, JsonLines, StreamExecutionEnvironment

out, count, *gate = sys.argv[1:]

def pair(i):
    while gate and i == int(count) - 1 and not Path(gate[0]).exists():
        threading.Event().wait(0.05)
    return i, 1

env = StreamExecutionEnvironment.get_execution_environment()
env.enable_checkpointing(50)
env.config.max_parallelism = 8
numbers = env.from_generator(lambda i: i, None if count == "endless" else int(count), 1000)
pairs = numbers.set_parallelism(1).map(pair).set_parallelism(1)
keyed = pairs.key_by(lambda pair: pair[0] % 50)
keyed.reduce(lambda a, b: (b[0], a[1] + b[1])).sink_to(FileSink(out, JsonLines()))
env.execute("counting")
"""


class Service:
    """A job service in a folder, and a person who uses it."""

    def __init__(self, root):
        self.root = root
        self.home = root / "home"
        self.processes = []
        (root / "job.py").write_text(ENDLESS)
        (root / "failing.py").write_text(FAILING)
        (root / "counting.py").write_text(COUNTING)

    def start(self, *args):
        """Start the service and wait until it listens; return its process."""
        process = self.background("jobmanager", *args)
        self.process = process
        wait_until(lambda: f"pid {process.pid}" in self.said(process), "the service listens")
        return process

    def kill(self):
        """Kill the service with SIGKILL."""
        self.process.kill()
        assert self.process.wait(PATIENCE) == -signal.SIGKILL

    def background(self, *args):
        """Start a command whose standard error goes to a file; return its process."""
        with (self.root / f"said.{len(self.processes)}").open("wb") as file:
            process = subprocess.Popen(self._command(*args), cwd=self.root, stderr=file)
        process.said = Path(file.name)
        self.processes.append(process)
        return process

    def said(self, process):
        """Return the standard error of a command so far."""
        return process.said.read_text()

    def call(self, *args, code=0):
        """Run a command to its end."""
        done = subprocess.run(
            self._command(*args),
            cwd=self.root,
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=False,
        )
        assert done.returncode == code, done.stdout + done.stderr
        return done

    def here(self, *args, code=0):
        """Run a command to its end in this process; return its standard output and error."""
        return self._invoke(*args, code=code).output

    def _invoke(self, *args, code=0):
        done = CliRunner().invoke(main, [args[0], "--dir", str(self.home), *args[1:]])
        assert done.exit_code == code, done.output
        return done

    def count(self, name, count="endless", *options, gate=None):
        """Submit a counting job, detached, with folders that begin with a name; return its id.

        Its last record waits for the file `gate`, if there is one. So the job has not ended before.
        """
        options = ("--checkpoint-dir", f"{name}-ck", "--detach", *options)
        words = [f"{name}-out", str(count), *([] if gate is None else [str(gate)])]
        with contextlib.chdir(self.root):
            done = self._invoke("submit", "counting.py", *options, "--", *words)
        return done.stdout.split()[0]

    def begun(self, id):
        """Wait until a job has a snapshot and its workers, and return its entry."""

        def found():
            job = self.job(id)
            return job if job["last_snapshot"] and job["worker_pids"] else None

        return wait_until(found, f"job {id} has a snapshot", every=0.05)

    def found(self, id):
        """Wait until the service receives the figures of a running job."""

        def told():
            return json.loads(self.here("show", id, "--json"))["figures"]

        wait_until(told, f"the service has found job {id}", every=0.05)

    def snapshots(self, name):
        """Return the number of the newest snapshot that a counting job has begun."""
        folder = self.root / f"{name}-ck" / "checkpoints"
        return max((int(path.name) for path in folder.iterdir()), default=0)

    def lost_and_doubled(self, name):
        """Return how many records of a counting job are lost or wrong, and how many doubled."""
        seen = Counter((i, n) for i, n in committed(self.root / f"{name}-out"))
        assert seen
        last = max(i for i, _ in seen)
        return compared(seen, {(i, i // 50 + 1) for i in range(last + 1)})

    def submit(self, *args):
        """Submit an endless job, detached, and wait until it has a snapshot; return its id."""
        args = ("submit", "job.py", "--checkpoint-dir", "ck", "--detach", *args, "--", "endless")
        done = self.call(*args)
        id = done.stdout.split()[0]
        wait_until(lambda: self.job(id)["last_snapshot"], "a snapshot", every=0.05)
        return id

    def jobs(self):
        """Return the jobs of `penstock list`, by id."""
        # In this process, since it is asked again and again.
        told = CliRunner().invoke(main, ["list", "--dir", str(self.home), "--json"])
        assert told.exit_code == 0, told.output
        return {job["id"]: job for job in json.loads(told.stdout)}

    def first_job(self):
        """Wait until job 1 has a snapshot, and return its entry in `penstock list`."""

        def found():
            job = self.jobs().get("1")
            return job if job is not None and job["last_snapshot"] else None

        return wait_until(found, "job 1 has a snapshot", every=0.05)

    def job(self, id):
        """Return the entry of one job in `penstock list`."""
        return self.jobs()[id]

    def end(self):
        """End the commands that still run, and the jobs."""
        for process in self.processes:
            if process.poll() is None:
                process.send_signal(signal.SIGINT)
                process.wait(PATIENCE)
        # The jobs of a service that was killed have outlived it.
        for path in (self.home / "jobs").glob("*.json"):
            pid = json.loads(path.read_text())["pid"]
            if pid is not None and is_jobmanager(pid):
                kill(pid)

    def _command(self, *args):
        if args[0] not in ("run", "snapshots"):
            args = (args[0], "--dir", "home", *args[1:])
        return [sys.executable, "-m", "penstock", *args]


def is_jobmanager(pid):
    """Return whether a process is the JobManager of a service's job, and has not ended."""
    try:
        return b"penstock.runtime.jobmanager." in Path(f"/proc/{pid}/cmdline").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return False


def kill(*pids):
    """Kill processes, of which some may end by themselves when the first ones are killed."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
