"""Sort the whole input of an operator by key and event time, on disk if it is large."""

from __future__ import annotations

import struct
import tempfile
from collections.abc import Iterator
from heapq import merge
from operator import itemgetter
from pathlib import Path
from typing import IO, Any, NamedTuple

from penstock.dataflow.errors import StoreError
from penstock.runtime.serialization.codec import Codec

_LENGTH = struct.Struct(">I")
#: The number of records that are written, and read again, at once.
_PAGE = 1024
#: The estimated memory of a record with its key, beside the length of its encoded bytes.
_OVERHEAD_BYTES = 400


class SortedRecord(NamedTuple):
    """A record with the values by which it is sorted.

    Arguments:
        key: the canonical bytes of its key.
        timestamp: its event time, in milliseconds since the epoch.
        number: its position in the input.
        input: the index of the operator's input from which it came.
        record: the record.
    """

    key: bytes
    timestamp: int
    number: int
    input: int
    record: Any


_order = itemgetter(0, 1, 2)


class RecordSorter:
    """Takes records in any order, and returns them by key, event time and order of arrival.

    Records are collected in memory. When they exceed `memory_bytes`, they are sorted and written to
    a temporary file, a *run*. At the end all runs are merged.

    Arguments:
        codec: encodes records.
        folder: the folder for runs. It is made when it is needed.
        memory_bytes: the memory for records, in bytes. It is an estimate.
    """

    def __init__(self, codec: Codec, folder: Path, memory_bytes: int) -> None:
        self._codec, self._folder = codec, folder
        self._memory_bytes = memory_bytes
        self._records: list[SortedRecord] = []
        self._count = 0
        #: The number of records that fit into memory; None until it is estimated.
        self._limit: int | None = None
        self._runs: list[IO[bytes]] = []

    @property
    def runs(self) -> int:
        """The number of runs on disk."""
        return len(self._runs)

    def add(self, keys: list[bytes], timestamps: list[int], input: int, records: list[Any]) -> None:
        """Add records with their keys and event times, which come from one input."""
        numbers = range(self._count, self._count + len(records))
        self._records += [
            SortedRecord(key, timestamp, number, input, record)
            for key, timestamp, number, record in zip(
                keys, timestamps, numbers, records, strict=True
            )
        ]
        self._count = numbers.stop
        if self._limit is None:
            self._limit = self._estimated_limit(self._records[-_PAGE:])
        if len(self._records) > self._limit:
            self._write_run()

    def sorted(self) -> Iterator[SortedRecord]:
        """Yield all records in their order, and forget them."""
        records, self._records = self._records, []
        records.sort(key=_order)
        runs, self._runs = self._runs, []
        if not runs:
            yield from records
            return
        try:
            yield from merge(*map(self._read_run, runs), records, key=_order)
        finally:
            for run in runs:
                run.close()

    def close(self) -> None:
        """Close the files, which removes them."""
        for run in self._runs:
            run.close()
        self._runs, self._records = [], []

    def _estimated_limit(self, some: list[SortedRecord]) -> int:
        size = len(self._codec.encode_batch(list(map(tuple, some))))
        return max(_PAGE, self._memory_bytes // (3 * size // len(some) + _OVERHEAD_BYTES))

    def _write_run(self) -> None:
        records, self._records = self._records, []
        records.sort(key=_order)
        self._limit = self._estimated_limit(records[:: max(1, len(records) // _PAGE)])
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            # The file has no name, so that nothing is left of it when the process is killed.
            run = tempfile.TemporaryFile(dir=self._folder)  # noqa: SIM115 - it is closed later
            for begin in range(0, len(records), _PAGE):
                page = list(map(tuple, records[begin : begin + _PAGE]))
                data = self._codec.encode_batch(page)
                run.write(_LENGTH.pack(len(data)))
                run.write(data)
            run.seek(0)
        except OSError as error:
            raise StoreError(
                f"the input of an operator could not be sorted on disk: {error.strerror}",
                self._folder,
            ) from error
        self._runs.append(run)

    def _read_run(self, run: IO[bytes]) -> Iterator[SortedRecord]:
        while header := run.read(_LENGTH.size):
            page = self._codec.decode_batch(run.read(_LENGTH.unpack(header)[0]))
            yield from map(SortedRecord._make, page)
