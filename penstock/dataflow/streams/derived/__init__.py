"""Define the methods of streams that are built from other methods, and their functions.

For example, `track` adds a `KeyedProcessFunction`. A program could write each of these functions.
"""

from __future__ import annotations

from penstock.dataflow.streams.derived.derived_streams import DerivedStreams
from penstock.dataflow.streams.derived.keyed_derived_streams import KeyedDerivedStreams

__all__ = ["DerivedStreams", "KeyedDerivedStreams"]
