"""List the committed output of a `FileSink` by snapshot.

A file is committed when it has its final name. Other files of the same snapshot may not be
committed yet. The newest manifest in the job's checkpoint folder shows up to which snapshot the
output is complete, because it lists the committables that were still pending. Without the
checkpoint folder, a snapshot counts as complete when a later snapshot has a file. This is correct
because a sink publishes the snapshots in order.
"""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from penstock.connectors.staging_writer import sink_tag
from penstock.dataflow.errors import GraphError, JobError, StoreError
from penstock.snapshot.metadata.manifest import Manifest
from penstock.snapshot.storage.job_paths import JobPaths
from penstock.snapshot.storage.store import Store

#: The pattern of a `FileSink`'s file names: snapshot, subtask, attempt, uid, and tag of the sink.
_NAME = re.compile(r"part-(\d{10,})-(\d{5,})-(\d{4,})-(\w*)-([0-9a-f]{10})(\.\w+)")


@dataclass(frozen=True)
class SinkFile:
    """A committed file of a sink.

    Arguments:
        path: the path of the file.
        snapshot: the number of the snapshot that the file belongs to.
        subtask: the index of the subtask that wrote the file.
        tag: the part of the file name that identifies the sink.
    """

    path: str
    snapshot: int
    subtask: int
    tag: str


@dataclass(frozen=True)
class Reading:
    """The settings for reading the lines of a sink's files.

    Arguments:
        encoding: the text encoding of the files.
        header: whether the first row of a CSV file holds the names of its columns.
        delimiter, quote: the delimiter and the quote character of CSV files.
    """

    encoding: str = "utf-8"
    header: bool = True
    delimiter: str = ","
    quote: str = '"'


def list_output(folder: Path, after: int = -1, upto: int | None = None) -> list[SinkFile]:
    """Return the committed files of the snapshots `after < number <= upto`, in order.

    Raises:
        StoreError: if the folder cannot be listed, for example because it does not exist.
    """
    try:
        names = sorted(path.name for path in folder.iterdir())
    except OSError as error:
        raise StoreError(f"the output cannot be listed: {error.strerror}", folder) from error
    files = []
    for name in names:
        match = _NAME.fullmatch(name)
        if match is None:
            continue
        number = int(match[1])
        if after < number and (upto is None or number <= upto):
            files.append(SinkFile(str(folder / name), number, int(match[2]), match[5]))
    return files


def last_whole_snapshot(folder: Path, checkpoints: Path | None) -> int:
    """Return the newest snapshot up to which all output is complete; 0 if there is none.

    Arguments:
        folder: the sink's folder.
        checkpoints: the job's checkpoint folder; None if it is not known.

    Raises:
        GraphError: if several sinks write into the folder and `checkpoints` is None, or if
            `checkpoints` belongs to a job that does not write into the folder.
        StoreError: if the newest snapshot is damaged.
    """
    newest = None if checkpoints is None else _newest(checkpoints)
    if checkpoints is not None and newest is None:
        return 0  # The job has no snapshot yet, and its sink may not have created the folder.
    files = list_output(folder)
    if newest is not None:
        return _last_whole(folder, {file.tag for file in files}, newest) if files else 0
    if len({file.tag for file in files}) > 1:
        raise GraphError(
            f"{folder} holds the output of several sinks or runs: set the option "
            f"checkpoint to the job's checkpoint folder, which shows what is complete"
        )
    numbers = sorted({file.snapshot for file in files})
    return numbers[-2] if len(numbers) > 1 else 0


def _newest(checkpoints: Path) -> Manifest | None:
    store = Store(JobPaths.locate(checkpoints)[0].root)
    store.job_name()
    try:
        return store.newest()
    except StoreError:
        # The job may have removed this snapshot while it was read. Then a newer one exists.
        return store.newest()


def _last_whole(folder: Path, tags: set[str], newest: Manifest) -> int:
    staged = [item for item in newest.committables if isinstance(item.payload, dict)]
    # The job may have other sinks. Their pending output is not counted.
    mine = [item for item in staged if _is_of(folder, tags, item.payload)]
    if staged and not mine and not tags & _tags_of(newest):
        raise GraphError(
            f"no output in {folder} is of the job {newest.job!r}, whose checkpoint folder was "
            f"given: set the option checkpoint to that of the job that writes there"
        )
    missing = [item.snapshot for item in mine if not _is_there(folder, item.payload)]
    return min(missing) - 1 if missing else newest.number


def _is_of(folder: Path, tags: set[str], payload: Mapping[str, object]) -> bool:
    """Return whether a committable belongs to the sink that writes into `folder`."""
    target = Path(str(payload.get("target", "")))
    # The tag is compared first, because the folder may have another path on this machine.
    match = _NAME.fullmatch(target.name)
    if match is not None and match[5] in tags:
        return True
    # Penstock 0.1 recorded the full path of the file, and not the folder.
    of_sink = target.parent if target.is_absolute() else Path(str(payload.get("folder", "")))
    return of_sink.is_absolute() and of_sink.resolve() == folder.resolve()


def _is_there(folder: Path, payload: Mapping[str, object]) -> bool:
    return (folder / Path(str(payload["target"])).name).exists()


def _tags_of(manifest: Manifest) -> set[str]:
    """Return the tags of a job's sinks, and of the sinks of the job it was forked from."""
    lineages = [manifest.lineage, *([manifest.parent[0]] if manifest.parent else [])]
    uids = [operator.uid for operator in manifest.operators]
    return {sink_tag(lineage, uid) for lineage in lineages for uid in uids}


def read_lines(file: SinkFile, reading: Reading) -> Iterator[str]:
    """Yield the records of a file: each line of text, or each row of a CSV file as JSON.

    Raises:
        JobError: if the file cannot be read.
    """
    path = Path(file.path)
    try:
        with path.open(encoding=reading.encoding, newline="") as lines:
            if path.suffix == ".csv":
                yield from _csv_rows(lines, reading)
            else:
                for line in lines:
                    yield line.removesuffix("\n")
    except (OSError, UnicodeError, csv.Error) as error:
        raise JobError(f"{path} cannot be read: {error}") from error


def _csv_rows(lines: Iterator[str], reading: Reading) -> Iterator[str]:
    rows = csv.reader(lines, delimiter=reading.delimiter, quotechar=reading.quote, strict=True)
    names = next(rows, None) if reading.header else None
    for row in rows:
        record = row if names is None else dict(zip(names, row, strict=False))
        yield json.dumps(record, ensure_ascii=False)
