"""Replace cached streams of a program by their stored records."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Protocol

from penstock.dataflow.functions import ProcessFunction
from penstock.dataflow.graph.job_graph import JobGraph, Operator, OperatorOutput
from penstock.dataflow.operators import specs
from penstock.dataflow.sink import Sink
from penstock.dataflow.source import Source
from penstock.dataflow.time.watermark_strategy import WatermarkStrategy


class StoredRecords(Protocol):
    """The records of a cached stream, which are stored at its first execution."""

    timed: bool

    @property
    def is_stored(self) -> bool:
        """Whether the records are stored."""

    def with_timestamps(self) -> ProcessFunction:
        """Return a process function that adds timestamps, in the format of the sink."""

    def sink(self, resumed: bool) -> Sink:
        """Return a sink that stores the records, as far as an execution has all of them."""

    def source(self) -> Source:
        """Return a source of the stored records."""

    def invalidate(self) -> None:
        """Forget the records."""


def with_caches(
    graph: JobGraph,
    wanted: Iterable[int],
    caches: Mapping[int, tuple[StoredRecords, OperatorOutput]],
    resumed: bool,
) -> JobGraph:
    """Return a graph that reads cached streams that are stored, and stores the others.

    Arguments:
        graph: the operators of the next execution.
        wanted: the ids of the operators for which the program is executed.
        caches: for the id of each cached operator, its records and the output to store.
        resumed: whether the next execution resumes from a snapshot.
    """
    here = {id: caches[id] for id in caches if any(one.id == id for one in graph.operators)}
    stored = {id: records for id, (records, _) in here.items() if records.is_stored}
    operators = [
        _reading(one, stored[one.id]) if one.id in stored else one for one in graph.operators
    ]
    made = JobGraph(operators, [edge for edge in graph.edges if edge.target not in stored])
    made = made.part(made.upstream(wanted))
    for id, (records, output) in here.items():
        if id not in stored and any(one.id == id for one in made.operators):
            if records.timed:
                stamped = made.add(specs.PROCESS, "Event Times", records.with_timestamps())
                made.connect([output], stamped)
                output = OperatorOutput(stamped)
            sink = made.add(specs.SINK, "Store Records", records.sink(resumed))
            made.connect([output], sink)
    return made


def _reading(operator: Operator, records: StoredRecords) -> Operator:
    """Return a source that reads the stored records of an operator, in its place."""
    source = records.source()
    strategy = WatermarkStrategy() if records.timed else None
    return replace(
        operator, spec=specs.source(source), function=source, watermark_strategy=strategy
    )
