"""Record in the job's folder which output is known to be published.

The newest manifest lists all output that was staged for its snapshot, even if that output has been
published since. Another program may have removed published output. With this record, a resumed job
does not publish such output a second time.

The engine commits snapshots in order, and all output of a sink together. So the record needs only
one number for each sink: all output up to that snapshot is published. The record may be out of date
after a crash, or if a backup of it is used. Then the job commits some output again, and committers
recognise output that is already published.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping

from penstock.dataflow.errors import Recoverability, StoreError
from penstock.dataflow.sink import Committable
from penstock.snapshot.storage.filesystem.disk import FileSystem
from penstock.snapshot.storage.job_paths import JobPaths
from penstock.snapshot.storage.json_records import (
    read_record,
    replace_record,
    seal,
    unseal,
)

#: The type of the record: it maps (lineage, uid of the sink) to the number of the newest snapshot
#: whose output is published.
Confirmed = Mapping[tuple[str, str], int]

_DAMAGED = (
    "the record of what is published is damaged; put it back from a backup, or remove it: then "
    "all output of the newest snapshot is published again, and must still be there"
)


def read_confirmed(files: FileSystem, paths: JobPaths) -> dict[tuple[str, str], int]:
    """Return the record of published output; an empty dict if the file does not exist.

    Raises:
        StoreError: if the file is damaged.
        OSError: if the file cannot be read.
    """
    if not files.exists(paths.commits):
        return {}
    record = read_record(files, paths.commits, {"confirmed": list}, advice=_DAMAGED)
    return _from_entries(record["confirmed"], paths.commits)


def _from_entries(entries: list[object], place: object) -> dict[tuple[str, str], int]:
    found = {}
    for entry in entries:
        match entry:
            case [str(lineage), str(uid), int(number)]:
                found[lineage, uid] = number
            case _:
                raise StoreError(_DAMAGED, place, recoverability=Recoverability.NON_RECOVERABLE)
    return found


def packed(confirmed: Confirmed) -> bytes:
    """Return the content of an object with the record of published output."""
    return json.dumps(seal({"confirmed": _entries(confirmed)})).encode() + b"\n"


def unpacked(data: bytes, place: str) -> dict[tuple[str, str], int]:
    """Return the record of published output that an object contains.

    Raises:
        StoreError: if the object is damaged. The error names `place`.
    """
    record = unseal(data, {"confirmed": list})
    if record is None:
        raise StoreError(_DAMAGED, place, recoverability=Recoverability.NON_RECOVERABLE)
    return _from_entries(record["confirmed"], place)


def merged(left: Confirmed, right: Confirmed) -> dict[tuple[str, str], int]:
    """Return the later number of each sink in two records of published output."""
    sinks = {*left, *right}
    return {sink: max(left.get(sink, 0), right.get(sink, 0)) for sink in sinks}


def require_published(confirmed: Confirmed, lineage: str, published: int, paths: JobPaths) -> None:
    """Check that the record names no snapshot of a lineage that was never published.

    Otherwise the output of snapshots to come would count as published, and would be lost.

    Arguments:
        confirmed: the record of published output.
        lineage: the lineage of the snapshots in the folder.
        published: the highest number of a snapshot that was ever published in the folder. It must
            be read after the record, because the job may be running.
        paths: the paths in the job's folder.

    Raises:
        StoreError: if the record names a later snapshot.
    """
    wrong = max((n for (line, _), n in confirmed.items() if line == lineage), default=0)
    if wrong > published:
        raise StoreError(
            f"the record says that output of snapshot {wrong} is published, but the newest "
            f"snapshot is {published}: {_DAMAGED}",
            paths.commits,
            recoverability=Recoverability.NON_RECOVERABLE,
        )


def write_confirmed(files: FileSystem, paths: JobPaths, confirmed: Confirmed) -> None:
    """Write the record of published output durably.

    Raises:
        OSError: if the file cannot be written.
    """
    replace_record(files, paths.commits, {"confirmed": _entries(confirmed)})


def _entries(confirmed: Confirmed) -> list[list[str | int]]:
    return [[lineage, uid, number] for (lineage, uid), number in sorted(confirmed.items())]


def is_confirmed(item: Committable, confirmed: Confirmed) -> bool:
    """Return whether `confirmed` shows that a committable is published."""
    return item.snapshot <= confirmed.get((item.lineage, item.uid), 0)


def unconfirmed(
    items: Iterable[Committable], confirmed: Confirmed, later: Iterable[Committable] | None = None
) -> list[Committable]:
    """Return the committables that may not be published yet.

    Arguments:
        items: the committables of a manifest.
        confirmed: the record of published output.
        later: the committables of a later manifest of the same lineage, or None. Every manifest
            lists a committable until its commit is confirmed. So a committable of `items` that is
            missing in `later` is published.
    """
    held = None if later is None else {item.identity for item in later}
    return [
        item
        for item in items
        if not is_confirmed(item, confirmed) and (held is None or item.identity in held)
    ]
