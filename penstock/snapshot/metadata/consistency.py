"""Check that a manifest with a correct checksum is consistent.

A correct checksum is not enough: another program, or a version with a bug, may have written the
manifest. An inconsistent manifest could name files outside the snapshot's folder, or lose state
silently.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.snapshot.metadata.handles import KeyedHandle, LogHandle, OperatorStateHandle
from penstock.snapshot.metadata.type_check import require_type

if TYPE_CHECKING:
    from penstock.snapshot.metadata.manifest import Manifest, OperatorEntry

_MOST_GROUPS = 32768
# The start of the year 10000, in milliseconds since the epoch. Python has no later dates.
_MOST_MS = 253_402_300_800_000


def require_consistent(manifest: Manifest) -> None:
    """Check that the values of a manifest have the right types and fit each other.

    Raises:
        ValueError: if a value has a wrong type or is inconsistent; the message names the value.
    """
    require_type(manifest, type(manifest))
    _require(manifest.number >= 0, f"number {manifest.number}")
    _require(0 <= manifest.created_ms < _MOST_MS, f"created_ms {manifest.created_ms}")
    operators = {entry.uid: entry for entry in manifest.operators}
    _require(len(operators) == len(manifest.operators), "two operators with one uid")
    for entry in manifest.operators:
        fits = 1 <= entry.parallelism <= entry.max_parallelism <= _MOST_GROUPS
        _require(
            fits,
            f"operator {entry.uid!r}: parallelism {entry.parallelism}, {entry.max_parallelism}",
        )
    for handle in manifest.handles:
        operator = operators.get(handle.uid)
        if operator is None:
            raise ValueError(f"state of an operator {handle.uid!r} that is not listed")
        what = f"state of operator {handle.uid!r}, subtask {handle.subtask}"
        _require(0 <= handle.subtask < operator.parallelism, f"{what} of {operator.parallelism}")
        if handle.keyed is not None:
            _require_keyed(handle.keyed, operator, what)
        for log in handle.logs:
            _require_log(log, what)
        if handle.operator_state is not None:
            _require_operator_state(handle.operator_state, what)
        for file in handle.files:
            _require_name(file.name, what)
            if file.size < 0:
                raise ValueError(f"{what}: {file.name} has {file.size} bytes")


def _require_keyed(keyed: KeyedHandle, operator: OperatorEntry, what: str) -> None:
    groups = f"key groups {keyed.first_group} to {keyed.end_group} of {operator.max_parallelism}"
    fits = 0 <= keyed.first_group <= keyed.end_group <= operator.max_parallelism
    _require(fits, f"{what}: {groups}")
    if keyed.folder is not None:
        _require_name(keyed.folder, what)
    count = len(keyed.states)
    _require(len(keyed.kinds) in (0, count), f"{what}: {len(keyed.kinds)} kinds, {count} states")
    versioned = tuple(state_id for state_id, _ in keyed.versions)
    for word, ids in (
        ("expiring", keyed.expiring),
        ("late", keyed.late),
        ("versioned", versioned),
    ):
        fit = all(0 <= state_id < count for state_id in ids)
        _require(fit, f"{what}: {word} states {list(ids)} of {count}")


def _require_log(log: LogHandle, what: str) -> None:
    for index, start, end in log.pieces:
        fits = 0 <= index < len(log.files) and 0 <= start <= end
        _require(fits, f"{what}: a log has the piece {[index, start, end]}")


def _require_operator_state(state: OperatorStateHandle, what: str) -> None:
    names = [entry.name for entry in state.states]
    _require(len(set(names)) == len(names), f"{what}: two operator states with one name")
    _require(all(entry.elements >= 0 for entry in state.states), f"{what}: {state.states}")
    files = 0 if state.inline is not None else 1
    _require(len(state.files) == files, f"{what}: operator state in {len(state.files)} files")


def _require_name(name: str, what: str) -> None:
    # If the name begins with a slash, its first part is empty. pathlib is not used here, because it
    # is too slow for thousands of names.
    parts = name.split("/")
    if "" in parts or ".." in parts or "\0" in name:
        raise ValueError(f"{what}: the name {name!r} leads out of the snapshot's folder")


def _require(holds: bool, what: str) -> None:
    if not holds:
        raise ValueError(what)
