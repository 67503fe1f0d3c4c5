"""The parts of a snapshot that its readers return: states, entries, positions and so on."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from penstock.dataflow.errors import GraphError
from penstock.runtime.serialization.entry_fields import entry_parts, is_bounds
from penstock.saved.keyed_state import Stored
from penstock.snapshot.metadata.handles import StateMode
from penstock.snapshot.metadata.state_kind import StateKind

#: The kinds of operator state, by the mode of redistribution.
OPERATOR_KINDS = {
    StateMode.SPLIT: "operator list",
    StateMode.UNION: "union list",
    StateMode.BROADCAST: "broadcast",
}


class StateEntry(NamedTuple):
    """An entry of keyed state or operator state.

    Arguments:
        operator: the uid of the operator.
        state: the name of the state.
        kind: the kind of the state. Operator state is of the kind `operator list`, `union list` or
            `broadcast`.
        key: the key; None for operator state.
        part: the part that identifies the entry among those of the key: the key of an entry of a
            map or broadcast state, the index of an element of a list, or a list of the parts of a
            window or timer. None if a key has only one entry.
        value: the value.
        last_used_ms: the time of the last use of a value that expires, in milliseconds since the
            epoch; None if it does not expire.
        group: the key group of the key; None for operator state.
        subtask: the index of the subtask.

    Examples:
        >>> StateEntry("count", "total", "value", "the", None, 3, None, 17, 0).value
        3
    """

    operator: str
    state: str
    kind: str
    key: Any
    part: Any
    value: Any
    last_used_ms: int | None
    group: int | None
    subtask: int

    @property
    def window(self) -> Any:
        """The window or namespace of window state, and the time of a timer; otherwise None."""
        if self.kind.startswith("window") or self.kind == StateKind.TIMER.value:
            return self.part[0]
        return None


class SavedState(NamedTuple):
    """Describes one state of one operator in a snapshot.

    Arguments:
        operator: the uid of the operator.
        name: the name of the state.
        kind: the kind of the state, for example `value`, `map`, `timer` or `broadcast`.
        expires: whether the state has a time to live.

    Examples:
        >>> SavedState("count", "total", "value", False).name
        'total'
    """

    operator: str
    name: str
    kind: str
    expires: bool


class SourcePosition(NamedTuple):
    """The position of a source in one split, such as a file or a partition.

    Arguments:
        operator: the uid of the source.
        subtask: the subtask that reads the split.
        split: the id of the split.
        payload: the description of the split by the source.
        position: the position behind the last record that the source has emitted; None before the
            first one.
        watermarks: the state of the watermarks of the split, or None.

    Examples:
        >>> SourcePosition("numbers", 0, "0", None, 41, None).position
        41
    """

    operator: str
    subtask: int
    split: str
    payload: Any
    position: Any
    watermarks: Any


class InFlightElement(NamedTuple):
    """A record, a watermark or a status that was on its way at the barrier.

    Arguments:
        operator: the uid of the operator that receives it.
        subtask: the subtask that receives it.
        producer: the uid of the operator that has sent it.
        source: the subtask that has sent it.
        input: the index of the receiver's input; -1 for records that a source had not processed.
        partitioning: the name of the partitioning of the edge.
        kind: `record`, `watermark` or `status`.
        value: the record; the time of a watermark in milliseconds since the epoch; or whether the
            channel is idle.
        timestamp: the event time of a record in milliseconds since the epoch, or None.

    Examples:
        >>> InFlightElement("a", 0, "b", 0, 0, "hash", "record", ("x", 1), None).value
        ('x', 1)
    """

    operator: str
    subtask: int
    producer: str
    source: int
    input: int
    partitioning: str
    kind: str
    value: Any
    timestamp: int | None


class UnknownStateError(GraphError):
    """A snapshot holds no operator or state of a name."""


def state_entries(
    uid: str, name: str, kind: StateKind, subtask: int, expires: bool, found: Iterable[Stored]
) -> Iterator[StateEntry]:
    """Yield the entries of a state of a subtask; the bounds of a list are left out.

    Arguments:
        uid: the uid of the operator.
        name: the name of the state.
        kind: the kind of the state.
        subtask: the index of the subtask.
        expires: whether each value is a pair of the value and the time of its last use.
        found: the entries as they are stored.
    """
    kind_name, make = kind.value, StateEntry._make
    if not kind.is_composite and not expires:
        for group, _, key, value in found:
            yield make((uid, name, kind_name, key, None, value, None, group, subtask))
        return
    for group, _, key, value in found:
        if is_bounds(kind, key):
            continue
        last_used = None
        if expires:
            value, last_used = value
        first, part = entry_parts(kind, key)
        yield make((uid, name, kind_name, first, part, value, last_used, group, subtask))
