"""Take the place of a sink in a shadow run: `CapturedSink`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import IO

from penstock.dataflow.sink import Sink, SinkWriter, WriterContext
from penstock.dataflow.type_variables import UserValue
from penstock.runtime.shadow.record_text import record_text


class CapturedSink(Sink[UserValue]):
    """Writes the texts of records to files, and nothing to the target of the sink.

    Arguments:
        folder: the folder of the files, one for each subtask.
    """

    def __init__(self, folder: str) -> None:
        self._folder = folder

    def create_writer(self, context: WriterContext) -> SinkWriter:
        """Return a writer with a file of its own."""
        return _CapturingWriter(Path(self._folder) / str(context.subtask))


class _CapturingWriter(SinkWriter):
    """Writes a line of JSON for each record. The run has one attempt, so no line is doubled."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: IO[str] | None = None

    def open(self) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._file = self._path.open("w", encoding="utf-8")

    def write(self, batch: list[UserValue]) -> None:
        assert self._file is not None, "written before open"
        self._file.writelines(f"{json.dumps(record_text(record))}\n" for record in batch)

    def prepare(self, snapshot: int) -> None:
        del snapshot
        if self._file is not None:
            self._file.flush()

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
