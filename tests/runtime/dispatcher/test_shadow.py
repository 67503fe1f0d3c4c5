"""A new program is compared with that of a running job, which notices nothing of it."""

from __future__ import annotations

import contextlib
import json
import signal
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.processes.harness import PATIENCE, gone, wait_until
from tests.runtime.dispatcher.service import Service

PROGRAM = """
import os, sys, threading
from penstock import (
    Duration, GeneratorSource, KeyedProcessFunction, ProcessWindowFunction,
    StreamExecutionEnvironment, TumblingEventTimeWindows, ValueStateDescriptor, WatermarkStrategy,
)
from penstock.connectors import FileSink
from penstock.connectors.file_formats import JsonLines

class Count(KeyedProcessFunction):
    def open(self, context):
        self.count = context.get_state(ValueStateDescriptor("count"))

    def process_element(self, value, context):
        count = (self.count.value() or 0) + 1
        self.count.update(count)
        if VERSION == "broken":
            raise RuntimeError(f"broken at {count}")
        while VERSION == "waiting" and not os.path.exists("go"):
            threading.Event().wait(0.05)
        wrong = VERSION == "wrong" and value % 5 == 0
        yield {"key": value % 10, "count": -count if wrong else count}

class Window(ProcessWindowFunction):
    def process(self, key, context, elements):
        yield [key, context.window().start, len(elements)]

env = StreamExecutionEnvironment.get_execution_environment()
env.enable_checkpointing(50)
out = sys.argv[1]
# Each split has a watermark of its own, so no record is late if one subtask reads both.
strategy = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(
    lambda i, before: i * 10
)
source = GeneratorSource(lambda i: i, None, 500)
numbers = env.from_source(source, strategy, "Source: Generator").uid("numbers")
counted = numbers.key_by(lambda i: i % 10).process(Count()).uid("count")
counted.sink_to(FileSink(out, JsonLines())).uid("out")
keyed = numbers.key_by(lambda i: i % 10)
windows = keyed.window(TumblingEventTimeWindows.of(Duration.of_millis(1000))).process(Window())
windows.sink_to(FileSink(f"{out}-windows", JsonLines())).uid("windows")
if VERSION == "more sinks":
    numbers.sink_to(FileSink(f"{out}-more", JsonLines())).uid("more")
env.execute("counts")
"""


def write(service: Service, version: str) -> str:
    """Write a version of the program, and return the name of its file."""
    path = service.root / f"{version.replace(' ', '_')}.py"
    path.write_text(f"VERSION = {version!r}\n{PROGRAM}")
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
    args = ("--checkpoint-dir", "ck", "-p", "2", "--detach", "--", "out")
    assert service.call("submit", write(service, "first"), *args).stdout.split()[0] == "1"
    service.begun("1")
    return service


def shadow(service: Service, version: str, *options: str, code: int = 0):
    return service.call(
        "upgrade", "1", write(service, version), "--shadow", *options, "--", "out", code=code
    )


def descendants(pid: int) -> list[int]:
    """Return the processes that a process has started, and those that these have started."""
    found = []
    # Processes and threads may end meanwhile.
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            found += children(task)
    return found + [one for child in found for one in descendants(child)]


def children(task: Path) -> list[int]:
    """Return the processes that a thread has started."""
    try:
        return [int(child) for child in (task / "children").read_text().split()]
    except (FileNotFoundError, ProcessLookupError):
        return []


def leftovers(service: Service) -> list[str]:
    return [path.name for path in (service.root / "ck").glob("penstock-shadow-*")]


def require_exact(service: Service) -> None:
    """Stop the job, and check that no count is lost or doubled, and that there is no other."""
    service.call("cancel", "1")
    rows = []
    for path in (service.root / "out").rglob("*"):
        if path.is_file() and "_staging" not in path.parts:
            rows += [json.loads(line) for line in path.read_text().splitlines()]
    found = Counter((row["key"], row["count"]) for row in rows)
    assert found and set(found.values()) == {1}, "doubled"
    for key in range(10):
        counts = sorted(count for one, count in found if one == key)
        assert counts == [*range(1, len(counts) + 1)], "lost, or from a shadow run"
    assert not leftovers(service)


def test_equal_programs_are_equal_also_with_another_parallelism(running: Service) -> None:
    before = running.job("1")
    done = shadow(running, "second", "--parallelism", "1", "--snapshots", "4", "--json")
    report = json.loads(done.stdout)
    assert report["equal"] and report["snapshots"] >= 4
    counts = {sink["uid"]: sink for sink in report["sinks"]}
    (source,) = report["sources"]
    assert source["old"] == source["new"] == counts["out"]["old"] == counts["out"]["new"] > 0
    assert counts["windows"]["old"] == counts["windows"]["new"] > 0
    after = running.job("1")
    assert (after["pid"], after["worker_pids"]) == (before["pid"], before["worker_pids"])
    require_exact(running)


FILES = """
import sys
from penstock import FileSink, FileSource, JsonLines, StreamExecutionEnvironment

env = StreamExecutionEnvironment.get_execution_environment()
env.enable_checkpointing(50)
lines = env.from_source(FileSource("in", discovery_seconds=0.05, quiet_seconds=0)).uid("files")
counts = lines.key_by(lambda line: line[-1]).count().uid("counts")
counts.sink_to(FileSink(sys.argv[1], JsonLines())).uid("out")
env.execute("files")
"""


def test_files_that_are_found_during_the_run_are_the_same_for_both(service: Service) -> None:
    (service.root / "files.py").write_text(FILES)
    (service.root / "in").mkdir()
    over = threading.Event()

    def write_files() -> None:
        number = 0
        while not over.wait(0.02):
            number += 1
            hidden = service.root / "in" / f".{number}"
            hidden.write_text("".join(f"line {i}\n" for i in range(100)))
            hidden.rename(service.root / "in" / f"{number:06d}.txt")

    writer = threading.Thread(target=write_files)
    writer.start()
    try:
        service.start()
        args = ("--checkpoint-dir", "ck", "-p", "2", "--detach", "--", "out")
        service.call("submit", "files.py", *args)
        service.begun("1")
        shadowed = (
            "upgrade",
            "1",
            "files.py",
            "-p",
            "3",
            "--shadow",
            "--snapshots",
            "10",
            "--json",
        )
        report = json.loads(service.call(*shadowed, "--", "out").stdout)
    finally:
        over.set()
        writer.join()
    assert report["equal"]
    (source,), (sink,) = report["sources"], report["sinks"]
    assert source["old"] == source["new"] == sink["old"] == sink["new"] > 0


def test_a_difference_is_reported_and_nothing_is_promoted(running: Service) -> None:
    before = running.job("1")
    done = shadow(running, "wrong", "--promote", code=1)
    assert "  only old: {'count': " in done.stdout and "  only new: {'count': -" in done.stdout
    assert "only old, " in done.stdout and "differ" in done.stdout.splitlines()[-1]
    done = shadow(running, "more sinks", "--json", code=1)
    report = json.loads(done.stdout)
    assert not report["equal"]
    (more,) = (sink for sink in report["sinks"] if sink["uid"] == "more")
    assert more["old"] is None and more["only_new"] == more["new"] == report["sources"][0]["new"]
    after = running.job("1")
    assert (after["pid"], after["worker_pids"]) == (before["pid"], before["worker_pids"])
    require_exact(running)


def test_an_equal_program_is_promoted(running: Service) -> None:
    before = running.job("1")
    done = shadow(running, "second", "--promote")
    assert "are equal" in done.stdout and "job 1 runs the new program" in done.stderr
    assert running.job("1")["pid"] != before["pid"]
    require_exact(running)


def test_a_program_that_fails_shows_its_traceback(running: Service) -> None:
    before = running.job("1")
    done = shadow(running, "broken", "--promote", code=1)
    assert 'raise RuntimeError(f"broken at {count}")' in done.stderr
    after = running.job("1")
    assert (after["pid"], after["worker_pids"]) == (before["pid"], before["worker_pids"])
    require_exact(running)


def test_a_killed_shadow_run_leaves_nothing(running: Service) -> None:
    process = running.background("upgrade", "1", write(running, "waiting"), "--shadow", "--", "out")
    wait_until(lambda: "the new program starts" in running.said(process), "the second run")
    # A JobManager, the server from which its workers are forked, and two workers.
    wait_until(lambda: len(descendants(process.pid)) >= 4, "the workers of the shadow run")
    pids = descendants(process.pid)
    process.kill()
    assert process.wait() == -signal.SIGKILL
    wait_until(lambda: all(map(gone, pids)), "the processes of the shadow run have ended")
    assert leftovers(running), "the kill came too late"
    running.call("restart", "1")
    assert not leftovers(running)
    require_exact(running)


def test_the_service_is_killed_and_the_job_ends_during_a_shadow_run(running: Service) -> None:
    words = ("--shadow", "--promote", "--", "out")
    process = running.background("upgrade", "1", write(running, "waiting"), *words)
    wait_until(lambda: "the new program starts" in running.said(process), "the second run")
    running.kill()
    running.start()
    running.found("1")
    running.call("cancel", "1")
    assert leftovers(running), "the shadow run has ended with the job"
    (running.root / "go").touch()
    assert process.wait(PATIENCE) == 1
    assert "job 1 does not run: it is stopped" in running.said(process)
    assert not leftovers(running)


def test_a_shadow_run_takes_slots(service: Service):
    service.start("--slots", "3")
    args = ("--checkpoint-dir", "ck", "--detach", "--", "out")
    service.call("submit", write(service, "first"), *args)
    service.begun("1")
    # The other job leaves no room.
    other = service.count("a", "endless", "-p", "2")
    service.begun(other)
    said = shadow(service, "same", code=1).stderr
    reason = "it needs 1 slot, and 3 of 3 slots are taken by jobs 1, 2"
    assert f"job 1 can have no shadow run now: {reason}" in said
    service.here("cancel", other)
    # Now both programs of the shadow run have room, and a job has to wait for their end.
    command = ("upgrade", "1", write(service, "waiting"), "--shadow", "-p", "2", "--", "out")
    comparing = service.background(*command)
    text = "shadow: the new program starts"
    wait_until(lambda: text in service.said(comparing), "the new program starts")
    waiting = service.count("b", 100)
    reason = "it needs 1 slot, and 3 of 3 slots are taken by jobs 1, 1 (shadow run)"
    assert service.job(waiting)["waiting"] == reason
    wait_until(lambda: len(descendants(comparing.pid)) >= 4, "the workers of the shadow run")
    pids = descendants(comparing.pid)
    comparing.kill()
    # Until then they may write into the folder that the next start of the job removes.
    wait_until(lambda: all(map(gone, pids)), "the processes of the shadow run have ended")
    wait_until(lambda: service.job(waiting)["state"] == "finished", "its slots are free")
    service.call("restart", "1")
    require_exact(service)
