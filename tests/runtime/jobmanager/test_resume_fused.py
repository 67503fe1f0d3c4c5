"""Snapshots with records in flight between operators that would be chained at the resume.

Unaligned snapshots log the records in flight on any edge. Each job here is stopped with such
records, and resumed where the edge would be within a chain: no record may be lost or doubled.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import trio

from penstock.connectors import GeneratorSource
from penstock.dataflow.config import CheckpointingMode, JobConfig
from penstock.dataflow.environment import StreamExecutionEnvironment
from penstock.dataflow.graph.compile import compile_graph
from penstock.runtime.control.job_code import unpack
from penstock.runtime.jobmanager.job_settings import JobSettings
from penstock.runtime.jobmanager.jobmanager import JobManager
from tests.simulation.job import LEDGERS, Ledger, LedgerSink
from tests.simulation.run_program import program, run_program

LEDGER, RECORDS = -53, 1500
Build = Callable[[StreamExecutionEnvironment], None]


def numbers(env: StreamExecutionEnvironment) -> Any:
    source = GeneratorSource(lambda i: i, RECORDS, 20_000.0, clock=trio.current_time)
    return env.from_source(source, None, "numbers").uid("numbers")


def of_one_source(env: StreamExecutionEnvironment) -> None:
    """Chain the map to its source at parallelism 1, and not at parallelism 2."""
    mapped = numbers(env).set_parallelism(1).map(lambda i: i).uid("map")
    mapped.sink_to(LedgerSink(LEDGER)).uid("sink")


def unfused(env: StreamExecutionEnvironment) -> None:
    mapped = numbers(env).rebalance().map(lambda i: i).uid("map").disable_chaining()
    mapped.sink_to(LedgerSink(LEDGER)).uid("sink")


def fused(env: StreamExecutionEnvironment) -> None:
    numbers(env).map(lambda i: i).uid("map").sink_to(LedgerSink(LEDGER)).uid("sink")


async def stop(job: JobManager, *_: Any) -> None:
    await trio.sleep(0.05)
    job.stop()


@pytest.mark.parametrize(
    ("before", "after", "parallelism"),
    [(of_one_source, of_one_source, 1), (unfused, fused, 2), (unfused, fused, 1)],
)
def test_records_in_flight_come_back_to_an_operator_that_would_be_fused(
    before: Build, after: Build, parallelism: int, tmp_path: Path
) -> None:
    config = JobConfig(
        name="numbers",
        parallelism=2,
        checkpoint_dir="",
        checkpoint_interval_seconds=0.02,
        checkpointing_mode=CheckpointingMode.UNALIGNED,
        batch_records=4,
        channel_batches=4,
    )
    in_flight = 0
    for seed in range(1, 4):
        LEDGERS[LEDGER] = Ledger()
        first = replace(config, checkpoint_dir=str(tmp_path / str(seed)))
        second = replace(first, parallelism=parallelism)
        code = unpack(program(after, second))
        assert len(compile_graph(code.graph, second).chains) == 1
        try:
            ran = run_program(program(before, first), seed=seed, script=stop)
            in_flight += ran.outcome.snapshots[-1]["log_records"]
            options = JobSettings(resume="newest")
            ran = run_program(program(after, second), seed=seed, options=options)
            assert not isinstance(ran.outcome, Exception), ran.outcome
            assert LEDGERS[LEDGER].output() == Counter(range(RECORDS))
        finally:
            del LEDGERS[LEDGER]
    assert in_flight > 0
