"""Sources of a watermark group wait for the slowest of them."""

from __future__ import annotations

from penstock import StreamExecutionEnvironment
from penstock.connectors import SequenceSource
from penstock.dataflow.time import MAX_WATERMARK, WatermarkStrategy
from penstock.runtime.jobmanager.attempt.watermark_alignment import AlignmentCoordinator


def test_the_limit_is_the_lowest_watermark_of_the_group_and_the_drift() -> None:
    groups = AlignmentCoordinator({1: ("g", 10), 2: ("g", 20), 3: ("other", 5)}, {1: 1, 2: 2, 3: 1})
    assert groups.report(1, 0, 100) == [(1, 0, 110), (2, 0, 120), (2, 1, 120)]
    assert groups.report(2, 1, 40) == [(1, 0, 50), (2, 0, 60), (2, 1, 60)]
    assert groups.report(1, 0, 105) == []
    assert groups.report(3, 0, 0) == [(3, 0, 5)]
    assert groups.report(2, 1, 90) == [(1, 0, 100), (2, 0, 110), (2, 1, 110)]


def test_nobody_waits_for_a_task_that_is_idle_or_at_its_end() -> None:
    groups = AlignmentCoordinator({1: ("g", 10), 2: ("g", 10)}, {1: 1, 2: 1})
    groups.report(1, 0, 5)
    groups.report(2, 0, 500)
    assert groups.report(1, 0, MAX_WATERMARK) == [(1, 0, 510), (2, 0, 510)]
    assert groups.report(2, 0, MAX_WATERMARK) == [(1, 0, MAX_WATERMARK), (2, 0, MAX_WATERMARK)]


def test_a_job_with_aligned_sources_reads_all_of_its_input() -> None:
    env = StreamExecutionEnvironment.get_execution_environment()
    env.set_in_process().set_parallelism(2)
    env.get_config().set_auto_watermark_interval(1)
    strategy = WatermarkStrategy.for_monotonous_timestamps().with_watermark_alignment("g", 100, 5)
    slow, fast = (
        env.from_source(
            SequenceSource(1, count),
            strategy.with_timestamp_assigner(lambda number, _, step=step: number * step),
            name,
        )
        for name, count, step in (("slow", 300, 1), ("fast", 3000, 10))
    )
    with slow.union(fast).execute_and_collect() as records:
        assert sorted(records) == sorted([*range(1, 301), *range(1, 3001)])
