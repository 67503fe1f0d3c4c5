"""Base classes for user-defined connectors. `docs/guides/own-connectors.md` is the guide."""

from __future__ import annotations

from penstock.connectors.bases.batch_sink import Batch, BatchSink, TransactionalSink
from penstock.connectors.bases.polling_source import PollingSource, SplitPoller

__all__ = ["Batch", "BatchSink", "PollingSource", "SplitPoller", "TransactionalSink"]
