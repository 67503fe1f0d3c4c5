"""Define stream methods that are built from other stream methods, with their functions.

For example, `track` adds a `KeyedProcessFunction`. A program could contain each of these functions
itself.
"""

from __future__ import annotations

from penstock.dataflow.streams.derived.derived_streams import DerivedStreams
from penstock.dataflow.streams.derived.keyed_derived_streams import KeyedDerivedStreams

__all__ = ["DerivedStreams", "KeyedDerivedStreams"]
