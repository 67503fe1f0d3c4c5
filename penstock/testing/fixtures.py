"""Provide pytest fixtures for tests that run jobs.

To enable the fixtures, write `pytest_plugins = ["penstock.testing.fixtures"]` in `conftest.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import pytest

from penstock.dataflow.environment import StreamExecutionEnvironment
from penstock.dataflow.program import current_options, run_options
from penstock.testing.harness import OperatorHarness
from penstock.testing.simulation import SimulationReport, simulate


@pytest.fixture
def penstock_in_process() -> Iterator[None]:
    """Run all jobs of a test inside the test's process.

    The fixture takes precedence over the settings of the programs.
    """
    with run_options(replace(current_options(), in_process=True)):
        yield


@pytest.fixture
def penstock_env(penstock_in_process: None) -> StreamExecutionEnvironment:
    """Return an environment of parallelism 2, whose jobs run inside the test's process."""
    del penstock_in_process
    return StreamExecutionEnvironment.get_execution_environment().set_parallelism(2)


@pytest.fixture
def penstock_simulate() -> Callable[..., SimulationReport]:
    """Return a function that runs a program under many seeds, and fails if an output is wrong.

    Its arguments are those of `simulate`.
    """

    def run(main: Callable[[], object], **settings: Any) -> SimulationReport:
        report = simulate(main, **settings)
        report.require_right()
        return report

    return run


@pytest.fixture
def operator_harness() -> Iterator[Callable[..., OperatorHarness]]:
    """Return `OperatorHarness`. Its harnesses are closed at the end of the test."""
    with ExitStack() as stack:

        def create(*arguments: Any, **settings: Any) -> OperatorHarness:
            harness = OperatorHarness(*arguments, **settings)
            stack.callback(harness.close)
            return harness

        yield create
