"""Tests that each source and each sink should pass. `docs/guides/own-connectors.md` is the guide.

A test class of a connector inherits all tests:

    class TestMySource(SourceConformance):
        def create_source(self): ...
"""

from __future__ import annotations

from penstock.testing.connectors.fake_target import FakeSystem, FakeTargetSink
from penstock.testing.connectors.nonconformity import Nonconformity
from penstock.testing.connectors.sink_conformance import SinkConformance
from penstock.testing.connectors.source_conformance import SourceConformance

__all__ = ["FakeSystem", "FakeTargetSink", "Nonconformity", "SinkConformance", "SourceConformance"]
