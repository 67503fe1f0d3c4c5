"""Keep the log of a job's snapshots in an object store.

The log is the only part of the store that says which snapshots there are. Its entries are objects
with successive numbers, `log/0000000001` and so on, and each is written by a conditional put: an
entry is never replaced. A snapshot is complete when its entry exists, because the entry contains
the manifest.

The conditional put also fences JobManagers. A JobManager that takes a job over appends a *claim*.
An older JobManager that still runs then cannot append an entry: the number that it expects is
taken. So it neither completes a snapshot nor reserves snapshot numbers. It learns that it was
replaced, and ends.

A put whose answer was lost may have reached the store, may reach it later, or never. `settle`
decides that: it appends a claim with the same number, so that the lost put either exists or is
refused from then on.

The object `newest` names an entry, from which a reader goes forward to the newest one. So no reader
depends on listings, which may lag. Entries are removed only before the one that `newest` names, and
`newest` only ever moves forward, by conditional puts.

The number of a removed entry is free again, and a JobManager that was replaced long ago may take
it. So a writer reads `newest` after its put. If `newest` is not before the entry that it wrote,
that number had been removed, and the entry counts for nothing: readers begin after it. See
docs/inside/decisions/068-snapshot-stores.md.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import replace

from penstock.dataflow.errors import ProtocolError, Recoverability, StoreError
from penstock.snapshot.storage.json_records import seal, unseal
from penstock.snapshot.storage.objects.log_entry import LiveSnapshot, LogEntry, damaged
from penstock.snapshot.storage.objects.object_api import Objects

#: The version of the layout of the store. It is written to objects, so never change its meaning.
_LAYOUT = 1
#: The number of tries to append a claim while another JobManager appends entries.
_TRIES = 100


class SnapshotLog:
    """The snapshot log of one job.

    Arguments:
        objects: the object store.
        writer: a text that no other JobManager has.
    """

    def __init__(self, objects: Objects, writer: str) -> None:
        self.objects = objects
        self._writer = writer
        self._newest: LogEntry | None = None
        #: The version of the object `newest`, and the entry that it names.
        self._version = ""
        self._named = 0
        #: Whether the fate of the entry after `_newest` is unknown.
        self.in_doubt = False
        self._forgotten: set[int] = set()

    @property
    def newest(self) -> LogEntry:
        """The newest entry that this object knows."""
        if self._newest is None:
            raise ProtocolError("the snapshot log was not read")
        return self._newest

    def job_name(self) -> str | None:
        """Return the name of the job that owns the store, or None if no job does.

        Raises:
            StoreError: if the store cannot be read, or a newer Penstock has written it.
        """
        data = self.objects.get("job")
        if data is None:
            return None
        record: dict[str, object] | None = unseal(data, {"layout": int, "job": str})
        if record is None:
            raise damaged(f"{self.objects.url}/job")
        if record["layout"] != _LAYOUT:
            raise StoreError(
                f"the snapshot store has layout {record['layout']}, and this Penstock knows "
                f"{_LAYOUT}: upgrade Penstock",
                self.objects.url,
            )
        return str(record["job"])

    def establish(self, job_name: str) -> None:
        """Make the store that of a job, unless it is already.

        Raises:
            StoreError: if the store belongs to another job, or cannot be used.
        """
        owner = self.job_name()
        if owner is None:
            # The object `job` comes last. So if it exists and `newest` does not, `newest` was lost.
            self.objects.create("newest", _packed({"sequence": 0}))
            identity = {"layout": _LAYOUT, "job": job_name}
            self.objects.create("job", _packed(identity))
            owner = self.job_name()
        if owner != job_name:
            raise StoreError(
                f"the snapshot store belongs to job {owner!r}, not to {job_name!r}; use another "
                "prefix, or run the job under its own name",
                self.objects.url,
            )

    def read(self) -> LogEntry | None:
        """Find the newest entry, and return it; None if the log is empty.

        Raises:
            StoreError: if the log cannot be read or is damaged.
        """
        newest, named = None, -1
        while newest is None:
            before, named = named, self._read_named()
            if named == 0:
                break
            newest = self.entry(named)
            # A JobManager may have removed the entry after it has named a newer one.
            if newest is None and named == before:
                raise StoreError(
                    f"entry {named} of the snapshot log was the newest, and it is gone: somebody "
                    "removed it, or the store lost it. Output up to its snapshot exists and would "
                    "be produced again from an older one; put it back",
                    f"{self.objects.url}/{_key(named)}",
                    recoverability=Recoverability.NON_RECOVERABLE,
                )
        while (following := self.entry(newest.sequence + 1 if newest else 1)) is not None:
            newest = following
        self._newest = newest
        return newest

    def _read_named(self) -> int:
        """Return the entry that the object `newest` names; 0 if the log is empty."""
        found = self.objects.get_version("newest")
        if found is None:
            if self.job_name() is None:
                return 0
            raise StoreError(
                "the object `newest` of the snapshot store is gone, so the newest snapshot is not "
                "known; put it back from a copy",
                f"{self.objects.url}/newest",
                recoverability=Recoverability.NON_RECOVERABLE,
            )
        data, self._version = found
        record = unseal(data, {"sequence": int})
        if record is None:
            raise damaged(f"{self.objects.url}/newest")
        self._named = record["sequence"]
        return self._named

    def entry(self, sequence: int) -> LogEntry | None:
        """Return an entry of the log, or None if it does not exist.

        Raises:
            StoreError: if it cannot be read or is damaged.
        """
        data = self.objects.get(_key(sequence))
        if data is None:
            return None
        entry = LogEntry.decode(data, f"{self.objects.url}/{_key(sequence)}")
        if entry.sequence != sequence:
            raise damaged(f"{self.objects.url}/{_key(sequence)}")
        return entry

    def snapshot(self, number: int) -> LogEntry | None:
        """Return the entry of a snapshot, or None if the snapshot was removed.

        Raises:
            StoreError: if it cannot be read or is damaged.
        """
        live = self.live.get(number)
        entry = None if live is None else self.entry(live.sequence)
        # The entry may have been removed, and a JobManager that was replaced may have its number.
        return entry if entry is not None and entry.live.get(number) == live else None

    def take_over(self) -> LogEntry:
        """Append a claim, which fences earlier JobManagers, and return it.

        Raises:
            StoreError: if the store cannot be used, or another JobManager keeps appending.
        """
        for _ in range(_TRIES):
            newest = self.read() or LogEntry(0, "")
            claim = self._claim(newest)
            if self._put(claim) is not None:
                self._newest = claim
                return claim
        raise StoreError(
            "another JobManager keeps writing to the snapshot store; stop it first",
            self.objects.url,
        )

    def reserve(self, next_number: int) -> None:
        """Record durably that all snapshot numbers below `next_number` were given out.

        Raises:
            StoreError: if it cannot be recorded, or another JobManager has taken the job over.
        """
        self.settle()
        self._append(replace(self._claim(self.newest), next_number=next_number))

    def publish(
        self, number: int, kind: str, manifest: bytes, files: Mapping[str, str]
    ) -> LogEntry:
        """Append the entry of a snapshot, which completes the snapshot.

        Arguments:
            number: the number of the snapshot.
            kind: the kind of the snapshot.
            manifest: the encoded manifest.
            files: the key of the object of each file, by checksum.

        Raises:
            StoreError: if the entry cannot be written, or another JobManager has taken the job
                over. If the answer of the store was lost, the snapshot may be complete.
        """
        self.settle()
        claim = self._claim(self.newest)
        entry = replace(
            claim,
            highest=max(claim.highest, number),
            live={**claim.live, number: LiveSnapshot(claim.sequence, kind)},
            files=files,
            manifest=manifest,
        )
        self._append(entry)
        return entry

    def settle(self) -> bool:
        """Find out whether the last entry has reached the store, if that is unknown.

        Returns:
            Whether the entry has reached the store, although `publish` or `reserve` has failed.

        Raises:
            StoreError: if the store cannot be used, or another JobManager has taken the job over.
        """
        if not self.in_doubt:
            return False
        claim = self._claim(self.newest)
        found = self._put(claim)
        if found is None:
            raise self._fenced(claim.sequence)
        self._newest, self.in_doubt = found, False
        return found is not claim

    @property
    def live(self) -> dict[int, LiveSnapshot]:
        """The snapshots that the store keeps, by number."""
        items = () if self._newest is None else self._newest.live.items()
        return {number: one for number, one in items if number not in self._forgotten}

    def forget(self, numbers: Iterable[int]) -> None:
        """Leave snapshots out of the entries to come. Their objects are not removed."""
        self._forgotten.update(numbers)

    def remove(self, sequences: frozenset[int]) -> frozenset[int]:
        """Remove entries that no reader needs any more.

        Returns:
            The entries that were removed. The others have to wait, or were removed already.

        Raises:
            StoreError: if the store cannot be used.
        """
        newest = self.newest.sequence
        if self._named < newest:
            version = self.objects.replace("newest", _packed({"sequence": newest}), self._version)
            if version is None:
                # The answer to an earlier replacement was lost, or another JobManager goes on.
                found = self.objects.get_version("newest")
                record = None if found is None else unseal(found[0], {"sequence": int})
                if found is None or record is None or record["sequence"] > newest:
                    return frozenset()
                self._version, self._named = found[1], record["sequence"]
            else:
                self._version, self._named = version, newest
        old = frozenset(sequence for sequence in sequences if sequence < self._named)
        if old:
            self.objects.delete([_key(sequence) for sequence in sorted(old)])
        return old

    def _claim(self, newest: LogEntry) -> LogEntry:
        return replace(
            newest,
            sequence=newest.sequence + 1,
            writer=self._writer,
            live={n: one for n, one in newest.live.items() if n not in self._forgotten},
            files={},
            manifest=b"",
        )

    def _append(self, entry: LogEntry) -> None:
        self.in_doubt = True
        if self._put(entry) is None:
            raise self._fenced(entry.sequence)
        self._newest, self.in_doubt = entry, False

    def _put(self, entry: LogEntry) -> LogEntry | None:
        """Append an entry, and return the entry of this JobManager that now has its number.

        It is another one if an earlier put has reached the store. Return None if another JobManager
        has taken the number.
        """
        written: LogEntry | None = entry
        if not self.objects.create(_key(entry.sequence), entry.encode()):
            # The store may have received this put twice, and have refused the second one.
            found = self.entry(entry.sequence)
            if found is None or found.writer != self._writer:
                return None
            written = entry if found == entry else found
        return written if self._read_named() < entry.sequence else None

    def _fenced(self, sequence: int) -> StoreError:
        return StoreError(
            f"another JobManager has taken the job over: it wrote entry {sequence} of the snapshot "
            "log, so this one must stop",
            self.objects.url,
            recoverability=Recoverability.NON_RECOVERABLE,
        )


def _key(sequence: int) -> str:
    return f"log/{sequence:010d}"


def _packed(record: dict[str, object]) -> bytes:
    return json.dumps(seal(record)).encode() + b"\n"
