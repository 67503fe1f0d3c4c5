"""The operators of batch mode: final results only, and one key after the other."""

from __future__ import annotations

from penstock.runtime.operators.batch.factory import make_batch_operator

__all__ = ["make_batch_operator"]
