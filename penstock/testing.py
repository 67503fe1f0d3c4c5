"""Fixtures of pytest for the tests of jobs.

A `conftest.py` enables them with `pytest_plugins = ["penstock.testing"]`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from penstock.dataflow.program import current_options, run_options

__all__ = ["penstock_in_process"]


@pytest.fixture
def penstock_in_process() -> Iterator[None]:
    """Run all jobs of a test inside its process; takes precedence over the programs' settings."""
    with run_options(replace(current_options(), in_process=True)):
        yield
