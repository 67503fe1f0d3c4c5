"""Keeps which output of a job is known to be published, in the job's folder.

The newest manifest holds all output that was staged for it, published since or not. This record
tells the two apart, so that a resumed job does not publish again what a reader may have taken away.

The engine commits snapshots in their order, and all output of a sink together. So one number for
each sink says it all: whatever is not newer is published. The record may be behind, after a crash
or with a file from a backup; then output is published again, which committers recognise.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from penstock.dataflow.errors import StoreError
from penstock.dataflow.sink import Committable
from penstock.snapshot.storage.filesystem.disk import FileSystem
from penstock.snapshot.storage.job_paths import JobPaths
from penstock.snapshot.storage.json_records import read_record, replace_record

__all__ = ["Confirmed", "is_confirmed", "read_confirmed", "unconfirmed", "write_confirmed"]

#: (lineage, uid of the sink) → the newest snapshot whose output is published.
Confirmed = Mapping[tuple[str, str], int]

_DAMAGED = (
    "the record of what is published is damaged; put it back from a backup, or remove it: then "
    "all that the newest snapshot holds is published again, and must still be there"
)


def read_confirmed(files: FileSystem, paths: JobPaths) -> dict[tuple[str, str], int]:
    """Return the record; it is empty if there is none.

    Raises:
        StoreError: if it is damaged.
        OSError: if it cannot be read.
    """
    if not files.exists(paths.commits):
        return {}
    entries = read_record(files, paths.commits, "confirmed", list, _DAMAGED)["confirmed"]
    found = {}
    for entry in entries:
        match entry:
            case [str(lineage), str(uid), int(number)]:
                found[lineage, uid] = number
            case _:
                raise StoreError(_DAMAGED, paths.commits)
    return found


def write_confirmed(files: FileSystem, paths: JobPaths, confirmed: Confirmed) -> None:
    """Make the record durable. Raises `OSError`."""
    entries = [[lineage, uid, number] for (lineage, uid), number in sorted(confirmed.items())]
    replace_record(files, paths.commits, {"confirmed": entries})


def is_confirmed(item: Committable, confirmed: Confirmed) -> bool:
    """Return whether a committable is known to be published."""
    return item.snapshot <= confirmed.get((item.lineage, item.uid), 0)


def unconfirmed(
    items: Iterable[Committable], confirmed: Confirmed, later: Iterable[Committable] | None = None
) -> list[Committable]:
    """Return what may not be published yet.

    Arguments:
        items: that a manifest holds.
        confirmed: the record.
        later: what a later manifest of the same lineage holds, if there is one. A committable
            stays in every manifest until its commit is confirmed.
    """
    held = None if later is None else {item.identity for item in later}
    return [
        item
        for item in items
        if not is_confirmed(item, confirmed) and (held is None or item.identity in held)
    ]
