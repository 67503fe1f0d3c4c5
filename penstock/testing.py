"""Fixtures for pytest, for tests of one's own jobs.

A `conftest.py` makes them known: `pytest_plugins = ["penstock.testing"]`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from penstock.dataflow.program import current_options, run_options

__all__ = ["penstock_in_process"]


@pytest.fixture
def penstock_in_process() -> Iterator[None]:
    """Run the jobs of a test inside the process of the test, whatever the program says."""
    with run_options(replace(current_options(), in_process=True)):
        yield
