"""Object reuse: what a function has emitted must not change when the function goes on.

Records wait in batches, and are encoded later or not at all. A program may keep a record that it
has emitted, change it and emit it again. So a record that can change is copied when it is emitted,
as Flink does unless object reuse is enabled. It is not copied if nothing else refers to it:
`yield {"word": word}` costs no copy, and `yield record; record["n"] = 0` costs one.

`policy` decides how closely the output of a function is checked, so that immutable records cost
nothing. `mutability` decides whether a value can change, and `mutation_analysis` whether a function
changes objects. `ownership` copies shared values. The rules for users, and the other two places
where records are copied, are in docs/object-reuse.md.
"""

from __future__ import annotations

from penstock.dataflow.object_reuse.mutability import IMMUTABLE, can_change
from penstock.dataflow.object_reuse.ownership import (
    copy_if_shared,
    copy_items_if_shared,
    copy_local_if_shared,
    map_and_copy_if_shared,
)
from penstock.dataflow.object_reuse.policy import Check, EmissionPolicy

__all__ = [
    "IMMUTABLE",
    "Check",
    "EmissionPolicy",
    "can_change",
    "copy_if_shared",
    "copy_items_if_shared",
    "copy_local_if_shared",
    "map_and_copy_if_shared",
]
