"""Run a function, an operator or a piece of a program in a test, one record at a time.

`OperatorHarness` is the class for users. It compiles a small program (`harness_program`), creates
its real tasks, and runs their steps until there is nothing left to do (`harness_tasks`).
"""

from __future__ import annotations

from penstock.testing.harness.harness_snapshot import HarnessSnapshot
from penstock.testing.harness.operator_harness import OperatorHarness

__all__ = ["HarnessSnapshot", "OperatorHarness"]
