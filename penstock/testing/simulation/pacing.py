"""Slow down the sources of a program, so that much happens between the records of a short input.

Virtual time does not pass while a function runs. Without pauses, a file would be read at one moment
of it, before the first snapshot.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass

from penstock.dataflow.graph.job_graph import JobGraph
from penstock.dataflow.source import Read, ReaderContext, Source, SourceReader


@dataclass(frozen=True)
class Pace:
    """Limits how fast each reader reads.

    Arguments:
        records: the greatest number of records of a read.
        pause_seconds: the time after each read, in virtual seconds.
    """

    records: int = 1 << 30
    pause_seconds: float = 0.0


def paced(graph: JobGraph, pace: Pace) -> JobGraph:
    """Return a program with the same operators, whose sources read at this pace."""
    operators = []
    for operator in graph.operators:
        if operator.spec.is_source:
            operator = copy.copy(operator)
            operator.function = _paced_source(operator.function, pace)
        operators.append(operator)
    return JobGraph(operators, graph.edges)


def _paced_source(source: Source, pace: Pace) -> Source:
    slow = copy.copy(source)
    # The attribute of the object comes before the method. A dataclass may be frozen.
    object.__setattr__(slow, "create_reader", _PacedReaders(source, pace))
    return slow


@dataclass(frozen=True)
class _PacedReaders:
    """Creates the readers of a source, and makes them slow."""

    source: Source
    pace: Pace

    def __call__(self, context: ReaderContext) -> SourceReader:
        reader = self.source.create_reader(context)
        read, pace = reader.read, self.pace

        def slow_read(max_records: int) -> Read:
            found = read(min(max_records, pace.records))
            if found.finished or found.wait_seconds >= pace.pause_seconds:
                return found
            later: Read = found._replace(wait_seconds=pace.pause_seconds)
            if hasattr(found, "__dict__"):
                vars(later).update(vars(found))  # a `TimedRead` has more than its fields
            return later

        reader.read = slow_read  # type: ignore[method-assign]
        return reader
