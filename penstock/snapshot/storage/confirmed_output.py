"""Record in the job's folder which output is known to be published.

The newest manifest contains all output that was staged for it, whether or not it was published
since. With this record a resumed job does not publish output again that a reader may have removed.

The engine commits snapshots in order, and all output of a sink together. So one number for each
sink suffices: output up to that snapshot is published. After a crash, or if the file comes from a
backup, the record may be behind. Then output is published again, which committers recognise.
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
    "all output of the newest snapshot is published again, and must still be there"
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
    """Write the record durably. Raises `OSError`."""
    entries = [[lineage, uid, number] for (lineage, uid), number in sorted(confirmed.items())]
    replace_record(files, paths.commits, {"confirmed": entries})


def is_confirmed(item: Committable, confirmed: Confirmed) -> bool:
    """Return whether a committable is known to be published."""
    return item.snapshot <= confirmed.get((item.lineage, item.uid), 0)


def unconfirmed(
    items: Iterable[Committable], confirmed: Confirmed, later: Iterable[Committable] | None = None
) -> list[Committable]:
    """Return the committables that may not be published yet.

    Arguments:
        items: the committables of a manifest.
        confirmed: the record.
        later: the committables of a later manifest of the same lineage, if there is one. A
            committable stays in every manifest until its commit is confirmed.
    """
    held = None if later is None else {item.identity for item in later}
    return [
        item
        for item in items
        if not is_confirmed(item, confirmed) and (held is None or item.identity in held)
    ]
