"""Ask for entries of a state, in a snapshot or of a running job: `StateRequest`.

Both ways give the same entries in the same form. A snapshot is consistent, and somewhat old. The
running job answers with what its tasks have in memory, each task at another time.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

from penstock.dataflow.errors import GraphError
from penstock.dataflow.graph.keys import KeyRefusedError, canonical
from penstock.runtime.serialization.codec import Codec
from penstock.runtime.serialization.entry_fields import FIRST_FIELDS, full_name
from penstock.runtime.serialization.type_registry import TypeRegistry
from penstock.saved.entries import OPERATOR_KINDS, StateEntry, state_entries
from penstock.saved.json_values import json_value, keys_of
from penstock.saved.keyed_state import Stored
from penstock.saved.queries import entries_of_key, largest
from penstock.saved.record_classes import PlainRegistry
from penstock.saved.snapshot import SavedSnapshot
from penstock.snapshot.metadata.schema import RecordSchema
from penstock.snapshot.metadata.state_kind import StateKind

#: The largest number of entries of one answer.
MAX_ENTRIES = 10_000


@dataclass(frozen=True)
class StateRequest:
    """Asks for entries of one state.

    At most one of `key`, `prefix` and `top` is given. Without them, any entries are returned.

    Arguments:
        operator: the uid of the operator.
        state: the name of the state.
        key: the key as JSON, as `keys_of` describes.
        prefix: the beginning of the keys, which are texts.
        top: the number of entries with the largest values.
        by: with `top`, the value that is compared, such as "value.amount".
        limit: the largest number of entries.

    Raises:
        GraphError: if the arguments do not fit together, or the key is no JSON.
    """

    operator: str
    state: str
    key: str | None = None
    prefix: str | None = None
    top: int | None = None
    by: str = "value"
    limit: int = 100

    def __post_init__(self) -> None:
        if sum(one is not None for one in (self.key, self.prefix, self.top)) > 1:
            raise GraphError("give only one of key, prefix and top")
        for name, number in (("top", self.top), ("limit", self.limit)):
            if number is not None and not 1 <= number <= MAX_ENTRIES:
                raise GraphError(f"{name} must be between 1 and {MAX_ENTRIES:,}, not {number}")
        if self.by.split(".")[0] not in FIRST_FIELDS:
            raise GraphError(
                f"an entry has no field {self.by.split('.')[0]!r}: it has key, part, value and "
                f"last_used_ms; a field of a value is named as value.{self.by}"
            )
        if self.key is not None:
            self._keys()

    def _keys(self) -> list[Any]:
        """Return the keys that the text may mean. Raise `GraphError` if it is no key."""
        assert self.key is not None
        found, refused = [], None
        for key in keys_of(self.key):
            try:
                canonical(key)
                found.append(key)
            except KeyRefusedError as error:
                refused = error
        if not found:
            raise GraphError(f"{self.key} cannot be a key: {refused}")
        return found

    def fields(self) -> dict[str, Any]:
        """Return the request as fields of a `StateQuery`, for a running job."""
        keys = [] if self.key is None else self._keys()
        codec = Codec(TypeRegistry())
        return {
            "operator": self.operator,
            "state": self.state,
            "keys": [codec.encode_value(key) for key in keys],
            "prefix": self.prefix,
            "top": self.top or 0,
            "by": self.by,
            "limit": self.limit,
        }


def read_from_snapshot(
    snapshot: SavedSnapshot, request: StateRequest
) -> tuple[list[StateEntry], bool]:
    """Return the entries of a snapshot, and whether there are more than the limit.

    Raises:
        GraphError: if there is no such state, or its keys are of another type.
    """
    operator, state = request.operator, request.state
    state = full_name(state, (one.name for one in snapshot.states if one.operator == operator))
    described = snapshot.state(operator, state)
    if request.key is not None:
        if described.kind in OPERATOR_KINDS.values():
            raise GraphError(
                f"the state {state!r} of {operator!r} has no keys: it is operator state; leave the "
                f"key out"
            )
        found = entries_of_key(snapshot, operator, state, request.key)
        if not found:
            sample = next(snapshot.entries(operator, state), None)
            if sample is not None:
                _require_kind(request, sample.key)
        return found[: request.limit], len(found) > request.limit
    if request.top is not None:
        return largest(snapshot.entries(operator, state), request.top, request.by), False
    entries = (
        snapshot.entries(operator, state)
        if request.prefix is None
        else snapshot.prefix(operator, state, request.prefix)
    )
    found = list(islice(entries, request.limit + 1))
    return found[: request.limit], len(found) > request.limit


def read_from_answer(
    answer: Mapping[str, Any], request: StateRequest
) -> tuple[list[StateEntry], bool]:
    """Return the entries in the answer of a running job, and whether there are more.

    Raises:
        GraphError: if the keys of the state are of another type than the key of the request.
    """
    types = [RecordSchema.from_wire(one) for one in answer["types"]]
    codec = Codec(PlainRegistry(types))
    kind, decode = StateKind(answer["kind"]), codec.decode_values
    rows: Sequence[Sequence[Any]] = answer["entries"]
    keys, values = decode([row[1] for row in rows]), decode([row[2] for row in rows])
    found = []
    for (subtask, _, _), key, value in zip(rows, keys, values, strict=True):
        stored = [Stored(-1, b"", key, value)]
        place = request.operator, request.state, kind, subtask
        found += [
            one._replace(group=None) for one in state_entries(*place, answer["expires"], stored)
        ]
    if request.key is not None and not found and answer["sample"]:
        sample = codec.decode_value(answer["sample"])
        _require_kind(request, sample[0] if kind.is_composite else sample)
    if request.top is not None:
        return (largest(found, request.top, request.by) if found else []), False
    more = bool(answer["more"]) or len(found) > request.limit
    return found[: request.limit], more


def _require_kind(request: StateRequest, sample: Any) -> None:
    """Raise `GraphError` if a key of the request is of another type than a key of the state."""
    if _kind_of(sample) not in map(_kind_of, request._keys()):
        raise GraphError(
            f"the keys of {request.state!r} of {request.operator!r} are of another type than "
            f"{request.key}: one of them is {json.dumps(json_value(sample), ensure_ascii=False)}"
        )


def _kind_of(key: Any) -> Any:
    """Return what keys of one type have in common."""
    if isinstance(key, tuple):
        return tuple(map(_kind_of, key))
    try:
        kind = canonical(key)[:1]
    except KeyRefusedError:
        return type(key).__name__
    return b"number" if kind in (b"i", b"I", b"d", b"q") else kind


def key_text(key: Any) -> str:
    """Return the JSON text of a key, for a `StateRequest`."""
    return json.dumps(_plain_key(key), ensure_ascii=False)


def _plain_key(key: Any) -> Any:
    # A named tuple is a JSON object as a value, and a list as a key.
    return list(map(_plain_key, key)) if isinstance(key, tuple) else json_value(key)


def entry_row(entry: StateEntry) -> dict[str, Any]:
    """Return an entry as JSON."""
    return {
        "key": json_value(entry.key),
        "part": json_value(entry.part),
        "value": json_value(entry.value),
        "last_used_ms": entry.last_used_ms,
        "key_group": entry.group,
        "subtask": entry.subtask,
    }
