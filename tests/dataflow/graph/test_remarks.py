"""Programs whose windows by the clock cannot fire, because their input ends, are warned."""

from __future__ import annotations

import pytest

from penstock import (
    RuntimeExecutionMode,
    StreamExecutionEnvironment,
    Time,
    TumblingProcessingTimeWindows,
)
from penstock.dataflow.graph.batch_mode import in_runtime_mode
from penstock.dataflow.graph.remarks import unfinished_windows


@pytest.mark.parametrize(
    ("count", "mode", "warned"),
    [
        (10, RuntimeExecutionMode.STREAMING, True),
        (None, RuntimeExecutionMode.STREAMING, False),
        (10, RuntimeExecutionMode.BATCH, False),
    ],
)
def test_windows_by_the_clock_of_input_that_ends_are_reported(
    count: int | None, mode: RuntimeExecutionMode, warned: bool
) -> None:
    env = StreamExecutionEnvironment.get_execution_environment()
    numbers = env.from_generator(lambda i: i, count=count)
    windows = TumblingProcessingTimeWindows.of(Time.seconds(1))
    numbers.key_by(lambda i: i % 2).window(windows).reduce(max).print()
    env.set_runtime_mode(mode)
    graph, config = in_runtime_mode(env._graph, env.config)
    remarks = list(unfinished_windows(graph, config))
    assert len(remarks) == warned
    assert all("those that are open then emit nothing" in remark for remark in remarks)
