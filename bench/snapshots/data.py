"""`snapshot-data`: how fast a snapshot is read as data, without its job.

A snapshot of one operator with many keys as rows of RocksDB, each with a value of about 70 bytes
that does not compress, as a job has them whose state does not fit into its memory. Two more
snapshots follow it: of 1 % of the keys that are neighbours, and of 1 % at random.

`query_ms` opens the snapshot, looks one key up and closes it, as `penstock snapshots query --key`
does; `lookup_ms` looks a key up in an open snapshot. `scan_keys_per_second` reads all entries, and
`scan_keys_per_cpu_second` leaves out the time for which other processes had the processor.
`diff_read_share` is the share of the second snapshot's bytes that a comparison reads, of files and
of all else. `written_keys_per_second` is how fast `SnapshotWriter` writes a million keys at most.
"""

from __future__ import annotations

import random
import statistics
import time
from pathlib import Path

from bench.common.harness import Figures, Say, WrongResultError, machine, percentile, scratch
from penstock import SnapshotWriter, open_snapshot
from penstock.dataflow.graph.keys import canonical
from penstock.runtime.serialization.codec import Codec
from penstock.runtime.serialization.type_registry import TypeRegistry
from penstock.saved.diff import compare
from penstock.snapshot.metadata.handles import KeyedHandle, OperatorHandle
from penstock.snapshot.metadata.manifest import (
    Manifest,
    OperatorEntry,
    SnapshotKind,
    SnapshotNumber,
)
from penstock.snapshot.metadata.manifest_format import encode_manifest
from penstock.snapshot.metadata.state_kind import StateKind
from penstock.snapshot.state.cold.checkpoint import CheckpointFiles
from penstock.snapshot.state.cold.rows import RowKeys
from penstock.snapshot.state.rocksdb.database import ROCKSDB
from penstock.snapshot.storage.job_paths import JobPaths

GROUPS = 128
_BATCH = 1000
_LOOKUPS = 100
_SETTLED_FILES = 8


def measure(keys: int, folder: str | None, say: Say) -> Figures:
    """Write the snapshots, and measure the reading of them."""
    with scratch(folder) as root:
        say(f"writing snapshots of {keys:,} keys")
        job = _Job(Path(root) / "job")
        job.put(range(keys), 0)
        job.settle(say)
        size = job.snapshot(1)
        some = max(1, keys // 100)
        job.put(range(keys // 2, keys // 2 + some), 1)
        job.snapshot(2)
        job.put(random.Random(7).sample(range(keys), some), 2)
        job.snapshot(3)
        job.close()
        figures: Figures = {"keys": keys, "bytes": size}
        figures |= _queries(job.paths.root, keys)
        say("reading all entries")
        figures |= _scan(job.paths.root, keys)
        say("comparing snapshots")
        figures |= _diff(job.paths.root, 1, 2, some, "neighbours")
        figures |= _diff(job.paths.root, 2, 3, some, "random")
        say("writing a snapshot")
        figures |= _write(Path(root) / "written", min(keys, 1_000_000))
        return figures | machine()


class _Job:
    """Takes snapshots of rows, without the rest of a job."""

    def __init__(self, root: Path) -> None:
        self.paths = JobPaths(root)
        self.paths.checkpoints.mkdir(parents=True)
        self.paths.job.write_text('{"layout": 1, "job": "large", "created_ms": 1}')
        self._codec = Codec(TypeRegistry())
        self._keys = RowKeys(self._codec, canonical, GROUPS, _BATCH)
        self._database = ROCKSDB.create(root / "work", ROCKSDB.memory(64 << 20))
        self._files = CheckpointFiles(root / "upload")
        self._random = random.Random(1)

    def put(self, numbers: range | list[int], version: int) -> None:
        for at in range(0, len(numbers), _BATCH):
            some = numbers[at : at + _BATCH]
            values = [(number, version, self._random.randbytes(60)) for number in some]
            encoded = self._codec.encode_values(values)
            batch = self._database.new_batch()
            rows = self._keys.rows(0, [_key(number) for number in some])
            for (row_key, opening), value in zip(rows, encoded, strict=True):
                batch[row_key] = opening + value
            self._database.write(batch)
            self._keys.forget()

    def settle(self, say: Say) -> None:
        """Wait until RocksDB has compacted its files, as it does between two snapshots of a job."""
        say("waiting for compactions")
        database = self._database._database  # type: ignore[attr-defined]
        while (
            int(database.property_value("rocksdb.num-files-at-level0")) > _SETTLED_FILES
            or database.property_int_value("rocksdb.compaction-pending")
            or database.property_int_value("rocksdb.num-running-compactions")
        ):
            time.sleep(0.5)

    def snapshot(self, number: int) -> int:
        self.paths.snapshot(number).mkdir()
        target = self.paths.task(number, "accounts", 0, 1)
        files, size = self._files.checkpoint(self._database, target)
        keyed = KeyedHandle(0, GROUPS, ("last",), None, target.name, files, (StateKind.VALUE,))
        manifest = Manifest(
            "large", "00c0ffee", None, SnapshotNumber(number), SnapshotKind.CHECKPOINT, number, 1,
            "0", "", operators=(
                OperatorEntry("accounts", "Accounts", "keyed_process", 1, GROUPS, True),
            ),
            handles=(OperatorHandle("accounts", 0, keyed),), sizes=size,
        )  # fmt: skip
        self.paths.manifest(number).write_bytes(encode_manifest(manifest))
        return size.total

    def close(self) -> None:
        self._database.close()


def _key(number: int) -> str:
    return f"user-{number:08d}"


def _queries(root: Path, keys: int) -> Figures:
    numbers = [random.Random(3).randrange(keys) for _ in range(_LOOKUPS)]
    opened = []
    for number in numbers[: _LOOKUPS // 4]:
        begin = time.perf_counter()
        with open_snapshot(root, 1) as snapshot:
            value = snapshot.get("accounts", "last", _key(number))
        opened.append((time.perf_counter() - begin) * 1000)
        if value[:2] != (number, 0):
            raise WrongResultError(f"key {number} has the value {value}")
    found = []
    with open_snapshot(root, 1) as snapshot:
        for number in numbers:
            begin = time.perf_counter()
            snapshot.get("accounts", "last", _key(number))
            found.append((time.perf_counter() - begin) * 1000)
        begin = time.perf_counter()
        prefix = _key(keys // 2)[:-2]
        if len(list(snapshot.prefix("accounts", "last", prefix))) != min(100, keys):
            raise WrongResultError(f"the prefix {prefix} has another number of keys")
        prefix_ms = (time.perf_counter() - begin) * 1000
    return {
        "query_ms_median": statistics.median(opened),
        "query_ms_max": max(opened),
        "lookup_ms_median": statistics.median(found),
        "lookup_ms_p99": percentile(found, 99),
        "prefix_of_100_keys_ms": prefix_ms,
    }


def _scan(root: Path, keys: int) -> Figures:
    with open_snapshot(root, 1) as snapshot:
        begin, cpu = time.perf_counter(), time.process_time()
        count = sum(1 for _ in snapshot.entries("accounts", "last"))
        seconds, cpu = time.perf_counter() - begin, time.process_time() - cpu
    if count != keys:
        raise WrongResultError(f"{count} entries instead of {keys}")
    return {"scan_keys_per_second": keys / seconds, "scan_keys_per_cpu_second": keys / cpu}


def _diff(root: Path, before: int, after: int, changed: int, which: str) -> Figures:
    read, begin = _bytes_read(), time.perf_counter()
    with open_snapshot(root, before) as old, open_snapshot(root, after) as new:
        count = sum(1 for change in compare(old, new) if change.kind == "changed")
        size = new.manifest.sizes.total
    if count != changed:
        raise WrongResultError(f"{count} changes instead of {changed}")
    return {
        f"diff_{which}_seconds": time.perf_counter() - begin,
        f"diff_{which}_read_share": (_bytes_read() - read) / size,
    }


def _bytes_read() -> int:
    """Return the bytes that this process has read by system calls."""
    return int(Path("/proc/self/io").read_text().split()[1])


def _write(folder: Path, keys: int) -> Figures:
    begin = time.perf_counter()
    with SnapshotWriter(folder, "written") as writer:
        pairs = ((_key(number), (number, 0)) for number in range(keys))
        writer.operator("accounts").put_all("last", pairs)
    seconds = time.perf_counter() - begin
    with open_snapshot(folder) as snapshot:
        if snapshot.get("accounts", "last", _key(keys - 1)) != (keys - 1, 0):
            raise WrongResultError("the last key is missing")
    return {"written_keys_per_second": keys / seconds}
