"""The ends of a job that runs inside a test: a source with a script, and a sink that collects."""

from __future__ import annotations

from penstock.testing.jobs.collecting_sink import CollectingSink
from penstock.testing.jobs.scripted_source import Fail, InjectedFailure, TestSource

__all__ = ["CollectingSink", "Fail", "InjectedFailure", "TestSource"]
