"""Define the entries of a snapshot log, and how they are stored in objects."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field

from penstock.dataflow.errors import Recoverability, StoreError
from penstock.snapshot.storage.json_records import seal, unseal

_TYPES: dict[str, type] = {
    "sequence": int,
    "writer": str,
    "next": int,
    "highest": int,
    "live": list,
    "files": dict,
}


@dataclass(frozen=True)
class LiveSnapshot:
    """A snapshot that the store keeps.

    Arguments:
        sequence: the sequence number of the log entry that has its manifest.
        kind: the kind of the snapshot.
    """

    sequence: int
    kind: str


@dataclass(frozen=True)
class LogEntry:
    """One entry of a snapshot log: a snapshot, or a claim of a JobManager.

    Each entry says what is known after it, so that a reader needs only the newest one.

    Arguments:
        sequence: the place of the entry in the log. Entries have successive numbers.
        writer: a text that no other JobManager has.
        next_number: the lowest snapshot number that was not given out.
        highest: the highest snapshot number that was ever published.
        live: the snapshots that the store keeps, by number.
        files: the key of the object of each file of the snapshot, by the checksum of the file.
        manifest: the manifest of the snapshot; empty for a claim.
    """

    sequence: int
    writer: str
    next_number: int = 1
    highest: int = 0
    live: Mapping[int, LiveSnapshot] = field(default_factory=dict)
    files: Mapping[str, str] = field(default_factory=dict)
    manifest: bytes = b""

    def encode(self) -> bytes:
        """Return the content of the entry's object: a line of JSON, and the manifest."""
        live = [[number, one.sequence, one.kind] for number, one in sorted(self.live.items())]
        record = seal(
            {
                "sequence": self.sequence,
                "writer": self.writer,
                "next": self.next_number,
                "highest": self.highest,
                "live": live,
                "files": dict(self.files),
            }
        )
        return json.dumps(record).encode() + b"\n" + self.manifest

    @classmethod
    def decode(cls, data: bytes, place: str) -> LogEntry:
        """Return the entry that an object contains.

        Arguments:
            data: the content of the object.
            place: the URL of the object, for the message.

        Raises:
            StoreError: if the object is damaged.
        """
        line, separator, manifest = data.partition(b"\n")
        record: dict[str, object] | None = unseal(line, _TYPES) if separator else None
        match record:
            case {
                "sequence": int(sequence),
                "writer": str(writer),
                "next": int(following),
                "highest": int(highest),
                "live": list(live),
                "files": dict(files),
            }:
                snapshots = {number: LiveSnapshot(place, kind) for number, place, kind in live}
                return cls(sequence, writer, following, highest, snapshots, files, manifest)
        raise damaged(place)


def damaged(place: str) -> StoreError:
    """Return the error for an object that was altered."""
    return StoreError(
        "an object of the snapshot store is damaged, or was edited: put it back from a copy, or "
        "start from another snapshot",
        place,
        recoverability=Recoverability.NON_RECOVERABLE,
    )
