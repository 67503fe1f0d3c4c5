"""Sources that are prepared in the program, and told what their snapshots hold."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from penstock import CollectionSource, GraphError, StreamExecutionEnvironment
from penstock.dataflow.errors import StoreError
from penstock.dataflow.program import RunOptions
from penstock.dataflow.source import Preparation, ReaderContext, Split, SplitEnumerator
from penstock.runtime.client.source_preparation import prepared_sources
from penstock.snapshot.storage.store import Store
from tests.processes.harness import run


class Enumerator(SplitEnumerator):
    """Two splits; writes down what `retain` is told."""

    def __init__(self, log: Path) -> None:
        self._log = log
        self._next = 0

    def next_split(self, subtask: int) -> Split | None:
        self._next += 1
        return Split(str(self._next), [0, 50]) if self._next <= 2 else None

    def snapshot(self) -> Any:
        return self._next

    def restore(self, state: Any) -> None:
        self._next = state

    def retain(self, states: Sequence[Any], begun: Sequence[Split]) -> None:
        with self._log.open("a") as file:
            print(json.dumps([list(states), [split.id for split in begun]]), file=file)


class Prepared(CollectionSource):
    """Its records are given to it by `prepare`."""

    def __init__(self, fail: bool = False) -> None:
        super().__init__([0])
        self.fail = fail
        self.calls: list[Any] = []

    def prepare(self, preparation: Preparation) -> None:
        self.calls.append(preparation)
        if self.fail:
            raise GraphError("it can't be")
        preparation.folder.mkdir(parents=True, exist_ok=True)
        (preparation.folder / "file").touch()

    def release(self) -> None:
        self.calls.append("released")

    def create_enumerator(self, parallelism: int) -> SplitEnumerator:
        return Enumerator(self.calls[0].folder / "log")

    def create_reader(self, context: ReaderContext) -> Any:
        return CollectionSource(list(range(50))).create_reader(context)


def _env(source: Prepared, folder: Path | None) -> StreamExecutionEnvironment:
    env = StreamExecutionEnvironment.get_execution_environment()
    env.set_parallelism(1)
    if folder is not None:
        env.enable_checkpointing(20)
        env.get_checkpoint_config().set_checkpoint_storage_dir(folder)
    env.from_source(source).uid("numbers/1")
    return env


def test_a_source_is_prepared_before_its_job_and_released_behind_it(tmp_path: Path):
    source = Prepared()
    env = _env(source, tmp_path / "job")
    first = env.from_source(third := Prepared()).uid("thirds")
    both = env.from_source(other := Prepared()).uid("others").union(first)
    with both.execute_and_collect() as records:
        assert sorted(records) == sorted(4 * list(range(50)))
    assert source.calls == [], "what does not lead to the stream was prepared"
    for one in (third, other):
        [preparation, released] = one.calls
        assert (preparation.resuming, preparation.attached) == (False, True)
        assert preparation.folder.parent == tmp_path / "job" / "sources"
        assert (preparation.folder / "file").exists()
        assert released == "released"
    assert third.calls[0].folder != other.calls[0].folder


def test_a_source_is_prepared_with_the_state_of_its_snapshot(tmp_path: Path):
    run(_env(Prepared(), tmp_path / "job"))
    newest = Store(tmp_path / "job").newest()
    assert newest is not None
    path = str(Store(tmp_path / "job").paths.snapshot(newest.number))
    for folder, resume, state in (
        ("job", "newest", 3),
        ("job", int(newest.number), 3),
        ("fork", str(tmp_path / "job"), 3),
        ("fork", path, 3),
        ("job", 10**6, None),
        ("fork", "newest", None),
        ("fork", str(tmp_path / "nothing"), None),
        ("job", None, None),
    ):
        source = Prepared()
        program = _env(source, tmp_path / folder)._program("counting")
        with prepared_sources(program, RunOptions(resume=resume)):
            [preparation] = source.calls
            assert (preparation.state, preparation.resuming) == (state, resume is not None)


def test_without_a_folder_for_the_job_there_is_one_until_its_end():
    env = _env(Prepared(), None)
    stream = env.from_source(source := Prepared()).union(env.from_source(other := Prepared()))
    with stream.execute_and_collect() as records:
        assert len(list(records)) == 200
    for one in (source, other):
        assert not one.calls[0].folder.exists()


def test_a_source_that_cannot_be_prepared_stops_the_start_and_is_released(tmp_path: Path):
    source = Prepared(fail=True)
    env = _env(source, tmp_path / "job")
    events: list[dict[str, Any]] = []
    with pytest.raises(GraphError, match="it can't be"):
        run(env, progress=events.append)
    assert not events
    assert source.calls[1:] == ["released"]


def test_one_source_object_cannot_be_two_sources(tmp_path: Path):
    source = Prepared()
    env = _env(source, tmp_path)
    env.from_source(source)
    with pytest.raises(GraphError, match="make one for each"):
        run(env)


def test_a_job_that_is_left_alone_needs_a_folder():
    program = _env(Prepared(), None)._program()
    with (
        pytest.raises(GraphError, match="--checkpoint-dir"),
        prepared_sources(program, RunOptions(), attached=False),
    ):
        pass


def test_an_enumerator_gets_the_states_of_retained_snapshots(tmp_path: Path):
    source = Prepared()
    env = _env(source, tmp_path / "job")
    # Only the last is taken, at the end: one before might be of the middle of a split.
    env.enable_checkpointing(3_600_000)
    run(env)
    lines = (source.calls[0].folder / "log").read_text().splitlines()
    states, begun = json.loads(lines[-1])
    assert states == [3], "both splits are dealt, and there is no third"
    assert begun == [], "both are read to their ends"


def test_nothing_is_prepared_in_somebodys_folder(tmp_path: Path):
    (tmp_path / "notes.txt").write_text("mine")
    source = Prepared()
    with pytest.raises(StoreError, match="is not empty"):
        run(_env(source, tmp_path))
    assert source.calls == [] and [path.name for path in tmp_path.iterdir()] == ["notes.txt"]
