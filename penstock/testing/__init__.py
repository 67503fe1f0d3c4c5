"""Test functions, operators, jobs and connectors without a cluster.

`docs/guides/testing.md` is the guide.

* `OperatorHarness` runs a function or a piece of a program, one record at a time.
* `TestSource` and `CollectingSink` are the ends of a job that runs inside the test.
* `penstock.testing.fixtures` has fixtures for pytest.
* `penstock.testing.connectors` has tests that each source and sink should pass.
"""

from __future__ import annotations

from penstock.dataflow.platforms import require_linux

require_linux()

# ruff: noqa: E402 - the runtime cannot be imported on other systems
from penstock.dataflow.time import Watermark
from penstock.runtime.network.elements import Barrier, EndOfInput
from penstock.testing.harness import HarnessSnapshot, OperatorHarness
from penstock.testing.jobs import CollectingSink, Fail, InjectedFailure, TestSource
from penstock.testing.timed_record import TimedRecord

__all__ = [
    "Barrier",
    "CollectingSink",
    "EndOfInput",
    "Fail",
    "HarnessSnapshot",
    "InjectedFailure",
    "OperatorHarness",
    "TestSource",
    "TimedRecord",
    "Watermark",
]
