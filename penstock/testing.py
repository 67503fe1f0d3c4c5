"""Provide pytest fixtures for tests that run jobs.

To enable the fixtures, write `pytest_plugins = ["penstock.testing"]` in `conftest.py`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from penstock.dataflow.program import current_options, run_options

__all__ = ["penstock_in_process"]


@pytest.fixture
def penstock_in_process() -> Iterator[None]:
    """Run all jobs of a test inside the test's process.

    The fixture takes precedence over the settings of the programs.
    """
    with run_options(replace(current_options(), in_process=True)):
        yield
