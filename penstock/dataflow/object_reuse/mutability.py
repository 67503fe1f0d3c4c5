"""Decide whether a value can change.

This depends on the type of the value. A hashable value need not be immutable: a dataclass with
`unsafe_hash=True` can change. A tuple or a frozen dataclass can change if an item or field of it
can change.
"""

from __future__ import annotations

import dataclasses
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Sequence
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from enum import Enum
from fractions import Fraction
from itertools import chain
from operator import attrgetter
from types import NoneType
from uuid import UUID
from zoneinfo import ZoneInfo

from penstock.dataflow.type_variables import UserValue
from penstock.dataflow.types.row import Row

IMMUTABLE = frozenset({NoneType, bool, int, float, str, bytes, complex, Decimal, Fraction})
IMMUTABLE |= {datetime, date, time, timedelta, timezone, ZoneInfo, UUID, range}
"""The types whose values cannot change, and contain nothing that can change."""

MUTABLE_CONTAINERS = frozenset(
    {list, dict, set, deque, bytearray, OrderedDict, Counter, defaultdict}
)
"""The built-in container types whose values can change."""


def can_change(values: Sequence[UserValue]) -> bool:
    """Return whether any of the values can change, or contains a value that can change.

    Objects that are not records count as unchangeable. Such an object cannot be encoded, so it
    cannot leave the operator chain.
    """
    kinds: set[UserValue] = set(map(type, values))
    if kinds <= IMMUTABLE:
        return False
    for kind in kinds - IMMUTABLE:
        if kind in MUTABLE_CONTAINERS or kind is Row:
            return True
        if issubclass(kind, tuple) or kind is frozenset:
            alike = [value for value in values if type(value) is kind] if len(kinds) > 1 else values
            # Most tuples contain only immutable values. For them, no list of the items is created.
            plain = IMMUTABLE.issuperset(map(type, chain.from_iterable(alike)))
            if not plain and can_change(list(chain.from_iterable(alike))):
                return True
        elif issubclass(kind, Enum):
            continue
        elif (parameters := getattr(kind, "__dataclass_params__", None)) is not None:
            if not parameters.frozen:
                return True
            alike = [value for value in values if type(value) is kind]
            for field in dataclasses.fields(kind):
                if can_change(list(map(attrgetter(field.name), alike))):
                    return True
    return False
