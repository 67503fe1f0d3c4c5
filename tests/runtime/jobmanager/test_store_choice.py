"""What is said about output that an object store for snapshots does not hold."""

from __future__ import annotations

from pathlib import Path

from penstock import FileSink, StreamExecutionEnvironment
from penstock.dataflow.graph.compile import compile_graph
from penstock.runtime.control.job_code import JobCode
from penstock.runtime.jobmanager.reporting.job_events import Note
from penstock.runtime.jobmanager.snapshots.store_choice import note_local_output
from penstock.testing.connectors.fake_target import FakeTargetSink


def notes(folder: Path, store: str | None) -> list[str]:
    env = StreamExecutionEnvironment.get_execution_environment()
    env.config.snapshot_store = store
    letters = env.from_collection(["a", "b"])
    letters.sink_to(FakeTargetSink(folder / "target")).name("Orders out")
    letters.sink_to(FileSink(folder / "out")).name("Files out")
    said: list[Note] = []
    plan = compile_graph(env._graph, env.config)
    note_local_output(JobCode(env._graph, env.config), plan, said.append)
    return [note.text for note in said]


def test_output_that_is_staged_in_the_folder_of_the_job_is_named(tmp_path: Path) -> None:
    (said,) = notes(tmp_path, "s3://snapshots/orders")
    assert said.startswith("output of 'Orders out' waits for its snapshot in the job's folder")
    assert "not in s3://snapshots/orders" in said


def test_nothing_is_said_if_the_snapshots_are_in_the_folder_as_well(tmp_path: Path) -> None:
    assert notes(tmp_path, None) == []
