"""Compare the keyed state and the operator state of two snapshots of a job.

Both snapshots are read in the order of key groups and keys, and only what may differ is read:

* A subtask whose files have the same checksums in both snapshots is skipped.
* Two sets of files of RocksDB share most of their files. A key is in one of the other files, or its
  entry is the same in both. So the rows of the other files are listed
  (`penstock/snapshot/state/rocksdb/subset.py`), and only their keys are looked up in both
  snapshots. If one snapshot has all files of the other, its further files are newer. Then their
  rows count, and only the other snapshot is searched. A deletion in these files cannot be listed.
  If there is one, all rows of the subtask are compared.
* Everything else is compared entry by entry: state in a manifest, blocks, SQLite, and operators
  whose parallelism has changed.

See docs/inside/decisions/052-snapshots-as-data.md.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import groupby, islice
from pathlib import Path
from typing import Any, NamedTuple

from penstock.dataflow.errors import GraphError, ProtocolError, StoreError
from penstock.runtime.serialization.entry_fields import is_bounds
from penstock.saved.entries import StateEntry
from penstock.saved.keyed_state import KeyedState, StoredRows, decode_row, link_to_read
from penstock.saved.snapshot import SavedSnapshot
from penstock.snapshot.metadata.handles import FileRecord, KeyedHandle, OperatorHandle
from penstock.snapshot.state.cold.rows import ROW_PREFIX
from penstock.snapshot.storage.filesystem.temporary_folder import TemporaryFolder

_CHUNK_KEYS = 256
_CACHE_BYTES = 8 * 1024 * 1024


class StateChange(NamedTuple):
    """An entry of state that differs between two snapshots.

    Arguments:
        kind: `added`, `changed` or `removed`.
        before: the entry in the first snapshot, or None if it was added.
        after: the entry in the second snapshot, or None if it was removed.

    Examples:
        >>> StateChange("added", None, None).kind
        'added'
    """

    kind: str
    before: StateEntry | None
    after: StateEntry | None


def compare(
    before: SavedSnapshot,
    after: SavedSnapshot,
    operator: str | None = None,
    state: str | None = None,
) -> Iterator[StateChange]:
    """Yield the entries of state that differ between two snapshots.

    Arguments:
        before: the first snapshot.
        after: the second snapshot.
        operator: the uid of the only operator to compare; None compares all operators.
        state: the name of the only state to compare; None compares all states.

    Raises:
        GraphError: if neither snapshot holds such an operator or state.
        StoreError: if a file is missing or damaged.
    """
    places = sorted(
        {
            (one.operator, one.name)
            for snapshot in (before, after)
            for one in snapshot.states
            if operator in (None, one.operator) and state in (None, one.name)
        }
    )
    if not places and (operator is not None or state is not None):
        raise GraphError(
            f"neither snapshot holds a state {state or '*'!r} of {operator or '*'!r}; they hold "
            + (", ".join(f"{one.operator}: {one.name}" for one in after.states) or "none")
        )
    return _compare(before, after, places)


def _compare(
    before: SavedSnapshot, after: SavedSnapshot, places: Sequence[tuple[str, str]]
) -> Iterator[StateChange]:
    for uid, of_operator in groupby(places, key=lambda place: place[0]):
        names = [name for _, name in of_operator]
        if _same_groups(before, after, uid):
            for old, new in _pairs(before, after, uid):
                yield from _subtask(before, after, old, new, names)
        else:
            for name in names:
                yield from _merge(_entries(before, uid, name), _entries(after, uid, name))
        for name in names:
            yield from _operator_state(before, after, uid, name)


_Pair = tuple[OperatorHandle | None, OperatorHandle | None]


def _handles(snapshot: SavedSnapshot, uid: str) -> dict[tuple[int, int], OperatorHandle]:
    return {
        (handle.keyed.first_group, handle.keyed.end_group): handle
        for handle in snapshot.manifest.handles
        if handle.uid == uid and handle.keyed is not None
    }


def _pairs(before: SavedSnapshot, after: SavedSnapshot, uid: str) -> Iterator[_Pair]:
    """Yield the subtasks of an operator in both snapshots, by their key groups."""
    old, new = _handles(before, uid), _handles(after, uid)
    for groups in sorted(old.keys() | new.keys()):
        yield old.get(groups), new.get(groups)


def _same_groups(before: SavedSnapshot, after: SavedSnapshot, uid: str) -> bool:
    """Return whether the subtasks have the same key groups in both snapshots."""
    old, new = _handles(before, uid), _handles(after, uid)
    return not old or not new or old.keys() == new.keys()


def _subtask(
    before: SavedSnapshot,
    after: SavedSnapshot,
    old: OperatorHandle | None,
    new: OperatorHandle | None,
    names: Sequence[str],
) -> Iterator[StateChange]:
    """Compare states of a subtask that has the same key groups in both snapshots."""
    found = None
    if old is not None and new is not None and old.keyed is not None and new.keyed is not None:
        if _is_same(old.keyed, new.keyed) and before.manifest.types == after.manifest.types:
            return
        found = _candidates(before, after, old.keyed, new.keyed)
    for name in names:
        if found is not None and old is not None and new is not None:
            yield from _looked_up(before, after, old, new, name, found)
        else:
            yield from _merge(_of_handle(before, old, name), _of_handle(after, new, name))
    for snapshot, handle in ((before, old), (after, new)):
        if handle is not None:
            snapshot.close_keyed_state(handle)


def _is_same(old: KeyedHandle, new: KeyedHandle) -> bool:
    """Return whether two handles have the same content, by the checksums of their files."""

    def content(handle: KeyedHandle) -> object:
        files = {(Path(file.name).name, file.size, file.checksum) for file in handle.files}
        return _layout(handle), handle.inline, files

    return content(old) == content(new)


# --- files that both snapshots share are not read ---


class _Candidates(NamedTuple):
    """The rows that may differ between two snapshots of a subtask.

    Arguments:
        before: the rows of the files that only the first snapshot has, keyed by row key; None if
            these need not be the newest rows of their keys.
        after: the same for the second snapshot.
        keys: the keys of all of these rows, sorted.
    """

    before: dict[bytes, bytes] | None
    after: dict[bytes, bytes] | None
    keys: list[bytes]


def _candidates(
    before: SavedSnapshot, after: SavedSnapshot, old: KeyedHandle, new: KeyedHandle
) -> _Candidates | None:
    """Return the rows that may differ; None if they cannot be listed."""
    if _layout(old) != _layout(new) or not all(map(_is_rocksdb, (old, new))):
        return None
    found = []
    for snapshot, mine, other in ((before, old, new), (after, new, old)):
        rows = _rows_of_files(snapshot, mine, {file.checksum for file in other.files})
        if rows is None:
            return None
        found.append(rows)
    first, second = found
    keys = sorted(first.keys() | second.keys())
    # A compaction replaces files. Without one, files only get added, and hold newer rows.
    return _Candidates(None if second else first, None if first else second, keys)


def _layout(handle: KeyedHandle) -> object:
    kinds = [handle.kind(index) for index in range(len(handle.states))]
    return handle.states, kinds, handle.expiring


def _is_rocksdb(handle: KeyedHandle) -> bool:
    return any(file.name.endswith(".sst") for file in handle.files)


def _rows_of_files(
    snapshot: SavedSnapshot, handle: KeyedHandle, shared: set[str]
) -> dict[bytes, bytes] | None:
    """Return the rows in the files of a handle that are not shared; None if it is not possible."""
    from penstock.snapshot.state.rocksdb.database import ReadOnlyRocksDatabase
    from penstock.snapshot.state.rocksdb.options import RocksMemory
    from penstock.snapshot.state.rocksdb.subset import subset_manifest

    own = [file for file in handle.files if file.checksum not in shared]
    tables = [file for file in own if file.name.endswith(".sst")]
    logs = [file for file in own if file.name.endswith(".log") and file.size]
    if not tables and not logs:
        return {}
    with TemporaryFolder("state") as folder:
        place = folder.path / "db"
        place.mkdir()
        for file in (*tables, *logs):
            link_to_read(snapshot.path / file.name, place / Path(file.name).name)
        manifest = _manifest_of(snapshot.path, handle.files)
        if manifest is None:
            return None
        name, data = manifest
        # A MANIFEST with a field that is not known raises an error. Then all rows are compared.
        with suppress(StoreError):
            numbers = [int(Path(file.name).stem) for file in tables]
            (place / name).write_bytes(subset_manifest(data, numbers))
            (place / "CURRENT").write_text(f"{name}\n")
            database = ReadOnlyRocksDatabase(place, RocksMemory(_CACHE_BYTES))
            try:
                if database.holds_deletions() or database.holds_blocks():
                    return None
                return dict(database.scan(b"", None))
            finally:
                database.close()
    return None


def _manifest_of(folder: Path, files: Sequence[FileRecord]) -> tuple[str, bytes] | None:
    for file in files:
        name = Path(file.name).name
        if name.startswith("MANIFEST-"):
            return name, (folder / file.name).read_bytes()
    return None


def _looked_up(
    before: SavedSnapshot,
    after: SavedSnapshot,
    old: OperatorHandle,
    new: OperatorHandle,
    name: str,
    found: _Candidates,
) -> Iterator[StateChange]:
    """Compare the rows of one state that may differ."""
    if old.keyed is None or name not in old.keyed.states:
        return
    index = old.keyed.states.index(name)
    mine = (key for key in found.keys if ROW_PREFIX.unpack_from(key)[1] == index)
    while chunk := list(islice(mine, _CHUNK_KEYS)):
        rows_before = _rows(before, old, found.before, chunk)
        rows_after = _rows(after, new, found.after, chunk)
        for key, row_before, row_after in zip(chunk, rows_before, rows_after, strict=True):
            if row_before != row_after:
                entry_before = _row_entry(before, old, index, key, row_before)
                entry_after = _row_entry(after, new, index, key, row_after)
                yield from _change(entry_before, entry_after)


def _rows(
    snapshot: SavedSnapshot,
    handle: OperatorHandle,
    known: dict[bytes, bytes] | None,
    keys: list[bytes],
) -> list[bytes | None]:
    """Return the row of each key; None where there is none."""
    if known:
        return [known[key] for key in keys]
    opened = snapshot.keyed_state(handle)
    if not isinstance(opened, StoredRows):
        raise ProtocolError("a state without blocks was opened as blocks")
    return opened.database.get_all(keys)


def _row_entry(
    snapshot: SavedSnapshot,
    handle: OperatorHandle,
    index: int,
    key: bytes,
    row: bytes | None,
) -> StateEntry | None:
    if row is None:
        return None
    return next(snapshot.shown(handle, index, [decode_row(snapshot.codec, key, row)]), None)


# --- everything else is compared entry by entry ---

#: An entry, with its place in the order of the entries of a state.
_Placed = tuple[tuple[int, bytes], StateEntry]


def _of_handle(
    snapshot: SavedSnapshot, handle: OperatorHandle | None, name: str
) -> Iterator[_Placed]:
    """Yield the entries of one state of a subtask, in order."""
    if handle is None or handle.keyed is None or name not in handle.keyed.states:
        return
    index = handle.keyed.states.index(name)
    opened: KeyedState = snapshot.keyed_state(handle)
    kind = handle.keyed.kind(index)

    # Bounds of lists are no entries, so each of the other entries is shown.
    left = (stored for stored in opened.scan(index) if not is_bounds(kind, stored.key))
    while chunk := list(islice(left, _CHUNK_KEYS)):
        for stored, entry in zip(chunk, snapshot.shown(handle, index, chunk), strict=True):
            yield (stored.group, stored.form), entry


def _entries(snapshot: SavedSnapshot, uid: str, name: str) -> Iterator[_Placed]:
    """Yield the entries of one state of an operator, in order."""
    handles = _handles(snapshot, uid)
    for groups in sorted(handles):
        yield from _of_handle(snapshot, handles[groups], name)


def _merge(before: Iterator[_Placed], after: Iterator[_Placed]) -> Iterator[StateChange]:
    old, new = next(before, None), next(after, None)
    while old is not None or new is not None:
        if new is None or (old is not None and old[0] < new[0]):
            assert old is not None
            yield StateChange("removed", old[1], None)
            old = next(before, None)
        elif old is None or new[0] < old[0]:
            yield StateChange("added", None, new[1])
            new = next(after, None)
        else:
            yield from _change(old[1], new[1])
            old, new = next(before, None), next(after, None)


def _change(before: StateEntry | None, after: StateEntry | None) -> Iterator[StateChange]:
    if before is None or after is None:
        if before is not after:
            yield StateChange("added" if before is None else "removed", before, after)
    elif not _is_equal(before.value, after.value) or before.last_used_ms != after.last_used_ms:
        yield StateChange("changed", before, after)


def _is_equal(one: Any, other: Any) -> bool:
    # The repr tells 1 from 1.0 and True, and finds that a NaN is unchanged.
    if type(one) is type(other) and one == other and type(one) in (int, str, bytes, float):
        return True
    return repr(one) == repr(other)


def _operator_state(
    before: SavedSnapshot, after: SavedSnapshot, uid: str, name: str
) -> Iterator[StateChange]:
    """Compare one operator state, subtask by subtask and element by element."""

    def elements(snapshot: SavedSnapshot) -> Iterator[_Placed]:
        if all((one.operator, one.name) != (uid, name) for one in snapshot.states):
            return
        for entry in sorted(snapshot.operator_entries(uid, name), key=_operator_place):
            yield _operator_place(entry), entry

    yield from _merge(elements(before), elements(after))


def _operator_place(entry: StateEntry) -> tuple[int, bytes]:
    part = f"{entry.part:020d}" if isinstance(entry.part, int) else repr(entry.part)
    return entry.subtask, part.encode("utf-8", "surrogatepass")
