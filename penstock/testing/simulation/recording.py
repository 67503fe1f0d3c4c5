"""Take the place of the sinks of a program, and record what each of them would have published."""

from __future__ import annotations

import copy
import random
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from penstock.dataflow.graph.job_graph import JobGraph
from penstock.dataflow.sink import Committable, Committer, Sink, SinkWriter, WriterContext


@dataclass
class Recording:
    """The world outside of the cluster, which survives each kill: staged and published output.

    Arguments:
        rng: decides which staging fails.
        on_commit: called before and after a commit, with "commit" and "committed".
        published: the texts of the records, by the name of the sink, with how often each is there.
        staging_failures: the part of the attempts to stage output that fail.
    """

    rng: random.Random = field(default_factory=random.Random)
    on_commit: Callable[[str], None] = lambda _: None
    published: dict[str, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))
    staged: dict[str, tuple[str, list[str]]] = field(default_factory=dict)
    names: int = 0
    staging_failures: float = 0.0


#: The recordings of the runs in this process, by number; the copies of a sink find theirs here.
_RECORDINGS: dict[int, Recording] = {}


def recorded(graph: JobGraph, number: int, recording: Recording) -> JobGraph:
    """Return a program whose sinks write to a recording.

    A sink that publishes with a committer is replaced by one that does so, too. Any other writes at
    once, and writes again after a failure.

    Arguments:
        graph: the program.
        number: the number of the recording, which no other has that is in use.
        recording: what the sinks write to.
    """
    _RECORDINGS[number] = recording
    names = sink_names(graph)
    operators = []
    for operator in graph.operators:
        if operator.spec.is_sink:
            operator = copy.copy(operator)
            commits = publishes_once(operator.function)
            operator.function = _RecordingSink(number, names[operator.id], commits)
        operators.append(operator)
    return JobGraph(operators, graph.edges)


def sink_names(graph: JobGraph) -> dict[int, str]:
    """Return a name for each sink, by the id of its operator. No two sinks have the same name."""
    seen: Counter[str] = Counter()
    names = {}
    for operator in graph.operators:
        if operator.spec.is_sink:
            seen[operator.name] += 1
            often = seen[operator.name]
            names[operator.id] = operator.name if often == 1 else f"{operator.name} ({often})"
    return names


def forget(number: int) -> None:
    """Forget a recording."""
    _RECORDINGS.pop(number, None)


def publishes_once(sink: Sink) -> bool:
    """Return whether a sink publishes its output with a committer."""
    return bool(getattr(sink, "exactly_once", False))


class _RecordingSink(Sink):
    def __init__(self, number: int, name: str, commits: bool) -> None:
        self.number, self.name, self.exactly_once = number, name, commits

    def create_writer(self, context: WriterContext) -> SinkWriter:
        del context
        return _Writer(_RECORDINGS[self.number], self.name, bool(self.exactly_once))

    def create_committer(self) -> Committer | None:
        return _Committer(_RECORDINGS[self.number]) if self.exactly_once else None


class _Writer(SinkWriter):
    def __init__(self, recording: Recording, name: str, commits: bool) -> None:
        self._recording, self._name, self._commits = recording, name, commits
        self._texts: list[str] = []

    def write(self, batch: list[Any]) -> None:
        # Texts, because a function may change a record later.
        texts = list(map(repr, batch))
        if self._commits:
            self._texts += texts
        else:
            self._recording.published[self._name].update(texts)

    def prepare(self, snapshot: int) -> Callable[[], list[Any]] | None:
        texts, self._texts = self._texts, []
        if not texts:
            return None
        recording = self._recording

        def finish() -> list[Any]:
            if recording.staging_failures and recording.rng.random() < recording.staging_failures:
                raise OSError("a simulated fault in staging")
            recording.names += 1
            name = f"{snapshot}-{recording.names}"
            recording.staged[name] = self._name, texts
            return [name]

        return finish


class _Committer(Committer):
    def __init__(self, recording: Recording) -> None:
        self._recording = recording

    def commit(self, committables: list[Committable]) -> None:
        recording = self._recording
        recording.on_commit("commit")
        for one in committables:
            # A committable that was published before has no staged records.
            name, texts = recording.staged.pop(str(one.payload), ("", []))
            if texts:
                recording.published[name].update(texts)
        recording.on_commit("committed")
