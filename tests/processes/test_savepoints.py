"""Savepoints of running jobs: they commit nothing, and nothing recovers from them."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from penstock import FileSink, JobClient, JsonLines, open_snapshot
from penstock.dataflow.program import RunOptions, run_options
from penstock.snapshot.protocols.events import SnapshotKind
from penstock.snapshot.storage.store import Store
from tests.processes.aims import Aims, strikes
from tests.processes.harness import (
    PATIENCE,
    Settings,
    committed,
    compared,
    counting_job,
    expected_words,
    lost_and_doubled,
    run,
    wait_until,
)
from tests.processes.parts import let_all_go


class _AimedSink(FileSink):
    """A sink that brings kills into the processes of the job."""

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings.output, JsonLines())
        self.aims = Aims(settings.folder, list(settings.aims), logs=False)


def _start(settings: Settings, events: list[dict[str, Any]], **options: Any) -> JobClient:
    """Start a counting job, and return when it has a checkpoint."""
    env = counting_job(settings, _AimedSink(settings))
    with run_options(RunOptions(progress=events.append, **options)):
        job = env.execute_async("counting")
    wait_until(lambda: any(one["event"] == "snapshot" for one in events), "there is a checkpoint")
    return job


@pytest.mark.parametrize("target", ["worker", "jobmanager"])
def test_a_kill_between_a_savepoint_and_the_next_checkpoint_loses_and_doubles_nothing(
    tmp_path: Path, target: str
):
    settings = Settings(tmp_path, 20_000, rate=2_000, parts=2, aims=(("holding", target),))
    events: list[dict[str, Any]] = []
    job = _start(settings, events, supervise=True)
    savepoint = int(Path(job.trigger_savepoint().result(PATIENCE)).name)
    let_all_go(settings.gate)
    result = job.get_job_execution_result().result(PATIENCE)
    [struck] = strikes(tmp_path)
    assert (struck["phase"], struck["target"]) == ("holding", target)
    lost = struck["number"]
    # The savepoint had output, and is not there: another one was taken in its place.
    assert struck["staged"] > 0 and savepoint > lost
    taken = {one.number: one.kind for one in Store(settings.job).list() if one.published}
    assert taken[savepoint] is SnapshotKind.SAVEPOINT and lost not in taken
    assert lost not in [one["number"] for one in events if one["event"] == "snapshot"]
    restored = [
        one["number"] if one["event"] == "resumed" else one["snapshot"]
        for one in events
        if one["event"] in ("resumed", "restarted")
    ]
    # Workers of a JobManager that dies may go on; then nothing is restored.
    assert all(number < lost for number in restored) and (restored or target == "jobmanager")
    assert not result.stopped
    assert lost_and_doubled(committed(settings.output), expected_words(settings)) == (0, 0)


def test_a_fork_of_a_savepoint_goes_on_where_the_output_before_it_ends(tmp_path: Path):
    settings = Settings(tmp_path / "first", count=20_000, rate=2_000, parts=2)
    settings.folder.mkdir()
    job = _start(settings, [])
    path = Path(job.trigger_savepoint().result(PATIENCE))
    job.cancel().result()
    number = int(path.name)
    manifest = Store(settings.job).load(number)
    assert manifest.kind is SnapshotKind.SAVEPOINT and not manifest.committables
    with open_snapshot(path) as snapshot:
        counts = {entry.key: entry.value for entry in snapshot.entries("count")}
    [state] = {type(value) for value in counts.values()}
    until = Counter({word: value[1] if state is tuple else value for word, value in counts.items()})
    before = {(word, i + 1) for word, many in until.items() for i in range(many)}
    # The job was cancelled, and yet all output up to the savepoint is there.
    assert compared(Counter(map(tuple, committed(settings.output))), before)[0] == 0
    later = Settings(tmp_path / "second", count=20_000, parts=1)
    later.folder.mkdir()
    run(counting_job(later), resume=str(path), fork=True)
    expected = expected_words(later)
    after = {(word, i + 1) for word, many in expected.items() for i in range(until[word], many)}
    assert compared(Counter(map(tuple, committed(later.output))), after) == (0, 0)
