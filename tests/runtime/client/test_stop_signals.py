"""Signals to a program whose job runs: the first stops the job, the second kills it."""

import signal
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from penstock import StoreError, StreamExecutionEnvironment
from penstock.dataflow.program import RunOptions, run_options
from penstock.runtime.client.executor import LocalExecutor
from tests.processes.harness import PATIENCE

STOPPED = {
    "event": "finished",
    "stopped": True,
    "restarts": [],
    "snapshots": [],
    "operators": [],
    "lineage": "",
    "loops": [],
    "totals": {},
    "metrics": [],
    "peak_bytes": [],
}


class Job:
    """A job that gets signals while it runs, as its client sees it.

    Arguments:
        signals: those that come.
        last: its last event, if it lives long enough to send one.
    """

    def __init__(self, signals: list[int], last: dict[str, Any] | None = None) -> None:
        self._signals = signals
        self._last = last
        self.asked = threading.Event()
        self.killed = False

    def events(self) -> Iterator[dict[str, Any]]:
        for number in self._signals:
            signal.raise_signal(number)
        assert not self._signals or self.asked.wait(PATIENCE)
        if self._last is not None:
            yield self._last

    def stop(self) -> None:
        self.asked.set()

    def drain(self) -> None: ...

    def kill(self) -> None:
        self.killed = True

    def wait(self) -> str:
        return "killed by signal 9" if self.killed or self._last is None else "exited with code 0"


def _execute(job: Job, monkeypatch: pytest.MonkeyPatch, **options: Any) -> None:
    monkeypatch.setattr(LocalExecutor, "start", lambda *_: job)
    env = StreamExecutionEnvironment.get_execution_environment()
    env.from_sequence(1, 3).print()
    with run_options(RunOptions(**options)):
        env.execute("job")


@pytest.mark.parametrize(
    ("number", "error", "code"),
    [(signal.SIGINT, KeyboardInterrupt, None), (signal.SIGTERM, SystemExit, 143)],
)
@pytest.mark.parametrize("count", [1, 2, 3])
def test_a_program_ends_as_its_first_signal_would_end_it(monkeypatch, number, error, code, count):
    job = Job([number] * count, STOPPED if count == 1 else None)
    before = signal.getsignal(number)
    with pytest.raises(error) as ended:
        _execute(job, monkeypatch)
    assert getattr(ended.value, "code", None) == code
    assert job.killed == (count > 1)
    assert signal.getsignal(number) is before


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_handler_that_was_installed_from_c_stays(monkeypatch, number):
    known, former = signal.getsignal, signal.getsignal(number)
    # Python knows no such handler, so it could not restore it.
    monkeypatch.setattr(signal, "getsignal", lambda n: None if n == number else known(n))
    during = []

    class Watched(Job):
        def events(self) -> Iterator[dict[str, Any]]:
            during.append(known(number))
            yield STOPPED

    _execute(Watched([]), monkeypatch)
    assert during == [former] and known(number) is former


def test_a_job_that_fails_by_itself_while_it_is_killed_shows_its_error(monkeypatch):
    failed = {"event": "failed", "family": "StoreError", "message": "the disk is full"}
    with pytest.raises(StoreError, match="the disk is full"):
        _execute(Job([signal.SIGINT] * 2, failed), monkeypatch)


def test_a_jobmanager_that_somebody_else_kills_is_an_error(monkeypatch):
    with pytest.raises(StoreError, match="the JobManager process killed by signal 9"):
        _execute(Job([]), monkeypatch)


@pytest.mark.parametrize(
    ("number", "hint"),
    [
        (signal.SIGINT, "stopping the job; press Ctrl-C again to kill it"),
        (signal.SIGTERM, "stopping the job; a second signal kills it"),
    ],
)
def test_the_first_signal_is_answered_at_once(monkeypatch, capsys, number, hint):
    told = threading.Event()
    events: list[dict[str, Any]] = []

    def progress(event: dict[str, Any]) -> None:
        events.append(event)
        told.set()

    class Stuck(Job):
        """Does not end before the answer."""

        def events(self) -> Iterator[dict[str, Any]]:
            signal.raise_signal(number)
            assert told.wait(PATIENCE)
            yield STOPPED

    with pytest.raises((KeyboardInterrupt, SystemExit)):
        _execute(Stuck([number]), monkeypatch, progress=progress)
    assert events == [{"event": "stopping", "text": hint}, STOPPED]
    assert capsys.readouterr().err == ""


def test_the_answer_goes_to_standard_error_where_no_progress_is_shown(monkeypatch, capsys):
    lines: list[str] = []
    told = threading.Event()

    class Stuck(Job):
        def events(self) -> Iterator[dict[str, Any]]:
            signal.raise_signal(signal.SIGINT)
            while not lines:
                lines.extend(capsys.readouterr().err.splitlines())
                told.wait(0.01)
            yield STOPPED

    with pytest.raises(KeyboardInterrupt):
        _execute(Stuck([signal.SIGINT]), monkeypatch)
    assert lines == ["stopping the job; press Ctrl-C again to kill it"]


@pytest.mark.parametrize("count", [1, 2])
def test_a_job_whose_records_are_collected_is_killed_by_the_second_ctrl_c(
    monkeypatch, capsys, count
):
    class Collected(Job):
        """Is stopped when its records are closed, and gets the second signal then."""

        running = True

        def events(self) -> Iterator[dict[str, Any]]:
            raise KeyboardInterrupt
            yield

        def drain(self) -> None:
            if count == 2:
                raise KeyboardInterrupt

    job = Collected([])
    monkeypatch.setattr(LocalExecutor, "start", lambda *_, **__: job)
    env = StreamExecutionEnvironment.get_execution_environment()
    records = env.from_sequence(1, 3).execute_and_collect()
    with pytest.raises(KeyboardInterrupt), records:
        next(records)
    assert job.asked.is_set() and job.killed == (count == 2)
    assert capsys.readouterr().err == "stopping the job; press Ctrl-C again to kill it\n"
