"""Jobs that do not end before the test has done to them what it wants to do.

How far a job comes until somebody is killed depends on the machine. Here it does not matter: a
source whose records come in parts, each when it is let go, and a function that is slow until all
is let go. Snapshots go on meanwhile. A folder is the gate, so that every process sees it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from penstock import MapFunction
from penstock.connectors.generator import GeneratorSource, _GeneratorReader
from penstock.dataflow.source import Read, ReaderContext, SourceReader

__all__ = ["PartedSource", "Slow", "has_let_all_go", "let_all_go", "let_go"]

#: The file that lets go of everything.
ALL = "all"
#: How often a reader looks whether it may go on.
LOOK_SECONDS = 0.01


def let_go(folder: Path) -> None:
    """Let the next part of the sources come that look into this folder."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / str(len(list(folder.iterdir())))).touch()


def let_all_go(folder: Path) -> None:
    """Let all of it come."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / ALL).touch()


def has_let_all_go(folder: Path) -> bool:
    """Whether nothing is kept back any more."""
    return (folder / ALL).exists()


class PartedSource(GeneratorSource):
    """A generator source whose records come in parts of about one size.

    Arguments:
        folder: where `let_go` says that one more may come; the first part comes at once.
        parts: how many there are.
        function, count: as of a generator source.
        records_per_second: the same, until all is let go.
    """

    def __init__(
        self,
        folder: Path,
        parts: int,
        function: Callable[[int], Any],
        count: int,
        records_per_second: float | None = None,
    ) -> None:
        super().__init__(function, count, records_per_second)
        self.folder, self.parts = folder, parts

    def end(self) -> int:
        """The index before which everything may come now."""
        assert self.count is not None
        names = [path.name for path in self.folder.iterdir()] if self.folder.exists() else []
        if ALL in names or len(names) + 1 >= self.parts:
            return self.count
        return self.count * (len(names) + 1) // self.parts

    def create_reader(self, context: ReaderContext) -> SourceReader:
        return _PartedReader(self)


class _PartedReader(_GeneratorReader):
    _end = 0

    def read(self, max_records: int) -> Read:
        source = self._source
        assert isinstance(source, PartedSource) and source.count is not None
        if self._next >= self._end < source.count:
            self._end = source.end()
        if self._pace is not None and has_let_all_go(source.folder):
            self._pace = None
        if self._next >= self._end < source.count:
            return Read([], self._next, False, LOOK_SECONDS)
        # Of this split; rounded up.
        room = -(-(self._end - self._next) // self._step)
        return super().read(max(1, min(max_records, room)))


class Slow(MapFunction):
    """Leaves records as they are, and takes its time until all is let go.

    Arguments:
        seconds: how long it blocks its worker, as a slow call would.
        gate: the folder that says when it is over.
        every: for so many records.
    """

    def __init__(self, seconds: float, gate: Path, every: int = 1) -> None:
        self.seconds, self.gate, self.every = seconds, gate, every
        self.count = 0

    def map(self, value: Any) -> Any:
        if self.seconds:
            self.count += 1
            if self.count % self.every == 0:
                threading.Event().wait(self.seconds)
                if has_let_all_go(self.gate):
                    self.seconds = 0
        return value
