"""What holds for all tests: how Hypothesis draws, how processes start, who runs what.

A run of the tests must depend neither on chance nor on how fast the machine is, so examples follow
from the test alone, and nothing has a deadline. `make test-long` draws other examples each time.
"""

from __future__ import annotations

import os
import sys
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from xdist.scheduler import LoadScopeScheduling

from tests.sizes import LONG

settings.register_profile(
    "penstock",
    deadline=None,
    derandomize=not LONG,
    # With the examples of earlier runs two runs would differ.
    database=None,
    print_blob=True,
    # These two judge the machine and the version of Hypothesis.
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
settings.load_profile("penstock")

# The tests start hundreds of processes. Where the environment forbids bytecode to be written, each
# would compile this package again, for half of the time that it takes to start.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False


#: Files that one process runs as a whole, by how their paths begin: those whose tests look at what
#: a fixture of the module has done, and those that share a Spark session, each with a JVM.
WHOLE = (
    "tests/test_api.py",
    "tests/spark/test_cluster",
    "tests/spark/test_table_sink",
    "tests/spark/test_stream",
    "tests/spark/",
)
#: What is longest begins first, but all of Spark at once would be too much for two cores.
ORDER = (*WHOLE[1:3], "tests/processes/", "tests/spark/", "tests/")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Bring the tests into the order in which they are handed out; leave out the longest."""
    if not LONG:
        items[:] = [item for item in items if item.get_closest_marker("long") is None]

    def turn(item: pytest.Item) -> int:
        found = (i for i, path in enumerate(ORDER) if item.nodeid.startswith(path))
        return next(found, len(ORDER))

    items.sort(key=turn)


class Scheduling(LoadScopeScheduling):
    """Hands out tests one by one, in order, and what belongs together to one process."""

    def _split_scope(self, nodeid: str) -> str:
        return next((path for path in WHOLE if nodeid.startswith(path)), nodeid)


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Scheduling:
    """What `-n` uses, whatever `--dist` says."""
    config.option.loadscopereorder = False
    return Scheduling(config, log)
