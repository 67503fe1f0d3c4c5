"""SIGTERM and Ctrl-C to the program: the job takes a last snapshot, ends, and can be resumed."""

import os
import signal
import subprocess
import sys
import textwrap
from collections import Counter
from pathlib import Path

import pytest

from penstock import FileSink, JsonLines, StreamExecutionEnvironment
from tests.processes.harness import (
    PATIENCE,
    Settings,
    committed,
    counting_job,
    expected_words,
    gone,
    lost_and_doubled,
    run,
    wait_until,
)

_COUNTING = """
    from pathlib import Path
    from tests.processes.harness import Settings, counting_job, run

    def tell(event):
        if event["event"] in ("workers", "snapshot"):
            print(event["event"], *event.get("pids", ()), flush=True)

    run(counting_job(Settings(Path(FOLDER), count=30_000, parts=2)), progress=tell)
"""

_BLOCKED = """
    import threading
    from penstock import FileSink, JsonLines, StreamExecutionEnvironment
    from tests.processes.harness import run

    def numbers(subtask, parallelism):
        yield from range(1000)
        threading.Event().wait()

    def tell(event):
        if event["event"] in ("workers", "snapshot"):
            print(event["event"], *event.get("pids", ()), flush=True)

    env = StreamExecutionEnvironment.get_execution_environment()
    env.enable_checkpointing(100)
    env.get_checkpoint_config().set_checkpoint_storage_dir(FOLDER + "/job")
    env.from_iterable(numbers).sink_to(FileSink(FOLDER + "/out", JsonLines()))
    run(env, progress=tell)
"""


class _Program:
    """A program in a process of its own."""

    def __init__(self, folder: Path, code: str) -> None:
        script = folder / "program.py"
        script.write_text(f"FOLDER = {str(folder)!r}\n" + textwrap.dedent(code))
        # Where this very package and these tests are, whatever is installed.
        root = str(Path(__file__).resolve().parents[2])
        self.process = subprocess.Popen(
            [sys.executable, str(script)],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={**os.environ, "PYTHONPATH": root},
        )
        self.workers: list[int] = []

    def wait_for_snapshots(self, count: int) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith("workers"):
                self.workers = [int(pid) for pid in line.split()[1:]]
            elif line.startswith("snapshot"):
                count -= 1
                if not count:
                    return
        raise AssertionError("the program ended before it was stopped")

    def stop(self, number: int) -> None:
        """Send a signal and wait for the end."""
        self.process.send_signal(number)
        self.process.communicate(timeout=PATIENCE)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_the_job_with_a_last_snapshot_that_is_resumed(tmp_path: Path, number: int):
    program = _Program(tmp_path, _COUNTING)
    program.wait_for_snapshots(2)
    program.stop(number)
    expected = {signal.SIGTERM: (143,), signal.SIGINT: (130, -signal.SIGINT)}
    assert program.process.returncode in expected[signal.Signals(number)]
    for pid in program.workers:
        wait_until(lambda pid=pid: gone(pid), f"worker {pid} ended")

    settings = Settings(tmp_path, count=30_000)
    already = len(committed(settings.output))
    assert 0 < already < settings.count
    events: list[dict] = []
    run(counting_job(settings), resume="newest", progress=events.append)
    assert any(event["event"] == "resumed" for event in events)
    # All that had been processed was in the last snapshot: nothing was processed again.
    [finished] = [event for event in events if event["event"] == "finished"]
    [source] = [e for e in finished["operators"] if e["uid"] == "numbers"]
    assert source["records_out"] == settings.count - already
    assert lost_and_doubled(committed(settings.output), expected_words(settings)) == (0, 0)


def test_a_source_that_is_blocked_in_a_read_does_not_hold_up_the_end(tmp_path: Path):
    program = _Program(tmp_path, _BLOCKED)
    program.wait_for_snapshots(3)
    # Snapshots go on while it is blocked; the first may have come before it had read so far.
    wait_until(lambda: len(committed(tmp_path / "out")) == 1000, "all it has read is committed")
    program.stop(signal.SIGTERM)
    assert program.process.returncode == 143
    for pid in program.workers:
        wait_until(lambda pid=pid: gone(pid), f"worker {pid} ended")
    assert Counter(committed(tmp_path / "out")) == Counter(range(1000))


def test_a_killed_program_leaves_no_process_behind_and_can_be_resumed(tmp_path: Path):
    program = _Program(tmp_path, _COUNTING)
    program.wait_for_snapshots(2)
    program.stop(signal.SIGKILL)
    for pid in program.workers:
        wait_until(lambda pid=pid: gone(pid), f"worker {pid} ended")
    settings = Settings(tmp_path, count=30_000)
    run(counting_job(settings), resume="newest")
    assert lost_and_doubled(committed(settings.output), expected_words(settings)) == (0, 0)


def test_closing_the_iterator_of_a_running_job_ends_it():
    env = StreamExecutionEnvironment.get_execution_environment()
    stream = env.from_generator(lambda i: i, None, 1000)
    with stream.execute_and_collect() as records:
        assert [next(records) for _ in range(5)] == [0, 1, 2, 3, 4]
    env = StreamExecutionEnvironment.get_execution_environment()
    assert len(env.from_generator(lambda i: i).execute_and_collect(limit=7)) == 7


def test_a_job_that_has_finished_has_nothing_left_to_do_when_it_is_resumed(tmp_path: Path):
    settings = Settings(tmp_path, count=500, rate=None)
    run(counting_job(settings))
    before = committed(settings.output)
    run(counting_job(settings), resume="newest")
    assert committed(settings.output) == before
    assert lost_and_doubled(before, expected_words(settings)) == (0, 0)


def test_a_bounded_job_without_a_checkpoint_folder_commits_at_its_end(tmp_path: Path):
    env = StreamExecutionEnvironment.get_execution_environment()
    env.from_collection([1, 2, 3]).sink_to(FileSink(tmp_path, JsonLines()))
    env.execute()
    assert Counter(committed(tmp_path)) == Counter([1, 2, 3])
