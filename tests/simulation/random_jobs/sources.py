"""The sources of random jobs: numbers that end, at a steady rate, and splits that do not."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from penstock.dataflow.output_tag import OutputTag
from penstock.dataflow.source import (
    ListEnumerator,
    Read,
    ReaderContext,
    Source,
    SourceReader,
    Split,
    SplitEnumerator,
)

__all__ = ["ASIDE", "EndlessSource"]

#: The side output of the source.
ASIDE = OutputTag[tuple[int, int]]("aside")


@dataclass
class EndlessSource(Source):
    """Splits that never end and are made for no task; the records are (split, index).

    Arguments:
        splits: how many there are.
        pause_seconds: between two reads of a split.
        blocking: read in threads.
        aside: every third record comes out at the side output `ASIDE`.
    """

    splits: int
    pause_seconds: float
    blocking: bool
    aside: bool = False
    bounded = False

    @property
    def side_output_tags(self) -> tuple[OutputTag, ...]:
        return (ASIDE,) if self.aside else ()

    def create_enumerator(self, parallelism: int) -> SplitEnumerator:
        return ListEnumerator([Split(str(number), number) for number in range(self.splits)])

    def create_reader(self, context: ReaderContext) -> SourceReader:
        return _EndlessReader(self)


class _EndlessReader(SourceReader):
    def __init__(self, source: EndlessSource) -> None:
        self._source = source
        self.blocking = source.blocking

    def open(self, split: Split, position: Any) -> None:
        self._split, self._next = split.payload, position or 0

    def read(self, max_records: int) -> Read:
        end = self._next + min(max_records, 2)
        aside = self._source.aside
        records, beside = [], []
        for index in range(self._next, end):
            record = (self._split, index)
            if aside and index % 3 == 0:
                beside.append((ASIDE, record))
            else:
                records.append(record)
        self._next = end
        return Read(records, end, False, self._source.pause_seconds, beside)
