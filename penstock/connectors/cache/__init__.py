"""Keep the records of a stream for later executions of the same environment."""

from __future__ import annotations

from penstock.connectors.cache.record_cache import RecordCache

__all__ = ["RecordCache"]
