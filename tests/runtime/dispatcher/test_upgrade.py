"""The program of a running job is replaced, and nothing is lost or doubled."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.processes.harness import wait_until
from tests.runtime.dispatcher.service import Service

PROGRAM = """
import sys
from penstock import KeyedProcessFunction, StreamExecutionEnvironment, ValueStateDescriptor
from penstock.connectors import FileSink
from penstock.connectors.file_formats import JsonLines

class Count(KeyedProcessFunction):
    def open(self, context):
        self.count = context.get_state(ValueStateDescriptor(STATE))

    def process_element(self, value, context):
        count = (self.count.value() or 0) + 1
        self.count.update(count)
        if VERSION == "broken":
            raise RuntimeError(f"broken at {count}")
        yield {"key": value % 3, "count": count, "by": VERSION}

env = StreamExecutionEnvironment.get_execution_environment()
env.enable_checkpointing(50)
stream = env.from_generator(lambda i: i, None, 500).uid("numbers")
counted = stream.key_by(lambda i: i % 3).process(Count()).uid("count")
counted.sink_to(FileSink(sys.argv[1], JsonLines())).uid("out")
env.execute("counts")
"""


def write(service: Service, version: str, state: str = "count") -> str:
    """Write a version of the program, and return the name of its file."""
    path = service.root / f"{version}.py"
    path.write_text(f"VERSION, STATE = {version!r}, {state!r}\n{PROGRAM}")
    return path.name


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    service = Service(tmp_path)
    yield service
    service.end()


@pytest.fixture
def running(service: Service) -> Service:
    """A service whose job 1 runs the program "first"."""
    service.start()
    write(service, "first")
    args = ("submit", "first.py", "--checkpoint-dir", "ck", "--detach", "--", "out")
    assert service.call(*args).stdout.split()[0] == "1"
    wait_until(lambda: "first" in versions(service), "output of the first program", every=0.05)
    return service


def rows(service: Service) -> list[dict]:
    files = Path(service.root, "out").rglob("*")
    # Output that is not published is in folders with such names.
    published = [one for one in files if one.is_file() and "_staging" not in one.parts]
    return [json.loads(line) for one in published for line in one.read_text().splitlines()]


def versions(service: Service) -> set[str]:
    return {row["by"] for row in rows(service)}


def require_exact(service: Service) -> None:
    """Stop the job, and check that each key was counted on without a gap or a repetition."""
    service.call("cancel", "1")
    found = Counter((row["key"], row["count"]) for row in rows(service))
    assert set(found.values()) == {1}, "doubled"
    for key in range(3):
        counts = sorted(count for one, count in found if one == key)
        assert counts == [*range(1, len(counts) + 1)], "lost"


def test_a_new_program_goes_on_where_the_old_one_has_stopped(running: Service) -> None:
    before = running.job("1")
    write(running, "second")
    done = running.call("upgrade", "1", "second.py", "--parallelism", "2", "--json", "--", "out")
    after = json.loads(done.stdout)
    assert after["id"] == "1" and after["parallelism"] == 2 and after["state"] == "running"
    assert after["last_snapshot"] > before["last_snapshot"] and after["pid"] != before["pid"]
    wait_until(lambda: "second" in versions(running), "output of the new program", every=0.05)
    running.call("restart", "1")
    wait_until(lambda: running.job("1")["last_snapshot"] > after["last_snapshot"], "a snapshot")
    require_exact(running)
    assert versions(running) == {"first", "second"}


def test_a_program_that_fails_is_taken_back(running: Service) -> None:
    write(running, "broken")
    done = running.call("upgrade", "1", "broken.py", "--", "out", code=1)
    assert 'raise RuntimeError(f"broken at {count}")' in done.stderr, "the traceback"
    assert "job 1 failed with the new program (parallelism 1), and runs as before" in done.stderr
    assert "RuntimeError: broken at" in running.call("logs", "1").stdout
    job = running.job("1")
    assert job["state"] == "running"
    newest = job["last_snapshot"]
    wait_until(lambda: running.job("1")["last_snapshot"] > newest + 1, "snapshots", every=0.05)
    require_exact(running)
    assert versions(running) == {"first"}


def test_a_program_that_does_not_fit_leaves_the_job_alone(running: Service) -> None:
    before = running.job("1")
    write(running, "other", "another state")
    done = running.call("upgrade", "1", "other.py", "--", "out", code=1)
    assert "Was it renamed?" in done.stdout
    assert "the program cannot go on from snapshot" in done.stderr
    (running.root / "wrong.py").write_text("raise ValueError('no program')")
    done = running.call("upgrade", "1", "wrong.py", code=1)
    assert "no program" in done.stderr
    assert "there is no job 7" in running.call("upgrade", "7", "first.py", code=1).stderr
    after = running.job("1")
    assert (after["pid"], after["worker_pids"]) == (before["pid"], before["worker_pids"])
    require_exact(running)
    done = running.call("upgrade", "1", "first.py", "--", "out", code=1)
    assert "job 1 cannot be upgraded: it is stopped" in done.stderr
