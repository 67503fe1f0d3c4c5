"""Copy emitted records if user code could still change them.

An emitted record waits in a batch before it is encoded, and some records are never encoded.
Meanwhile the user's function may change the record and emit it again. So a mutable record is copied
when it is emitted, as in Flink without object reuse. It is not copied if nothing else refers to it.
For example, `yield {"word": word}` needs no copy, but `yield record; record["n"] = 0` needs one.

`policy` decides which records of a function are checked, so that functions with immutable records
lose no time. For that, it looks whether the code of the function may change objects. `mutability`
decides whether a value can change. `ownership` copies values that are shared. The rules for users
are in `docs/guides/object-reuse.md`, which also names the other two places where records are
copied.
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
