"""A job that could never publish its output is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from penstock import (
    BatchSink,
    CheckpointingMode,
    FileSink,
    GraphError,
    JsonLines,
    PollingSource,
    StreamExecutionEnvironment,
    TransactionalSink,
)
from penstock.connectors import FileSource, GeneratorSource, IterableSource
from penstock.dataflow.program import RunOptions, run_options


class Transactions(TransactionalSink):
    def flush(self, records: Any, batch: Any) -> None: ...
    def commit(self, batches: Any) -> None: ...


class Upserts(BatchSink):
    def flush(self, records: Any, batch: Any) -> None: ...


class Discovering(PollingSource):
    discovery_seconds = 1.0

    def splits(self) -> list[str]:
        return []

    def create_poller(self, split: Any) -> Any:
        raise AssertionError


class Accepted(Exception):
    """The program was handed to its executor."""


class Executor:
    def execute(self, program: Any) -> Any:
        raise Accepted

    def collect(self, program: Any, outputs: Any) -> Any:
        raise Accepted


def execute(source: Any, sink: Any, **options: Any) -> None:
    env = StreamExecutionEnvironment.get_execution_environment()
    if "interval" in options:
        env.enable_checkpointing(options.pop("interval"), options.pop("mode", None))
    stream = env.from_source(source, None, "numbers")
    if sink is not None:
        stream.sink_to(sink).name("output")
    with run_options(RunOptions(executor=Executor(), **options)):
        if sink is None:
            stream.take(1)
        else:
            env.execute()


def endless() -> Any:
    return GeneratorSource(lambda i: i)


@pytest.mark.parametrize(
    "make", [endless, Discovering, lambda: IterableSource(list, bounded=False)]
)
@pytest.mark.parametrize("kind", ["files", "transactions"])
def test_an_endless_job_without_snapshots_and_a_sink_that_needs_them_is_refused(
    make: Any, kind: str, tmp_path: Path
):
    sink = FileSink(tmp_path / "out", JsonLines()) if kind == "files" else Transactions()
    with pytest.raises(GraphError, match=r"'output' publishes .* 'numbers' never ends, nothing"):
        execute(make(), sink)
    with pytest.raises(GraphError, match="its checkpointing mode is NONE"):
        execute(make(), sink, interval=100, mode=CheckpointingMode.NONE)
    with pytest.raises(Accepted):
        execute(make(), sink, interval=100)
    with pytest.raises(Accepted):
        execute(make(), sink, checkpoint_interval_seconds=1.0)


def test_jobs_that_end_and_sinks_that_write_at_once_need_no_snapshots(tmp_path: Path):
    (tmp_path / "in.txt").write_text("a")
    for source, sink in (
        (GeneratorSource(lambda i: i, 10), FileSink(tmp_path / "out")),
        (FileSource(tmp_path / "in.txt"), Transactions()),
        (endless(), Upserts()),
        (endless(), None),
    ):
        with pytest.raises(Accepted):
            execute(source, sink)


def test_a_source_that_goes_on_finding_splits_is_unbounded_for_batch_mode_and_caches():
    env = StreamExecutionEnvironment.get_execution_environment()
    stream = env.from_source(Discovering())
    with pytest.raises(GraphError, match="is unbounded"):
        stream.cache()
