"""A target of staged sinks that is in memory, and has the faults of a real one."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from penstock.connectors.staged_sink import Marker, SinkPlace, StagedSink, Target
from penstock.dataflow.sink import WriterContext
from penstock.dataflow.type_variables import PlainValue

_SYSTEMS: dict[str, FakeSystem] = {}


@dataclass
class FakeSystem:
    """A transactional system in memory, to which `FakeTargetSink` writes.

    It is found by its name, because sinks are sent to other parts of the job. All parts must be in
    one process.

    Arguments:
        name: a name that no other system of the process has.
        failure_rate: the probability that a step fails: a connection, a fence, a write, a commit
            that is not done, and a commit whose answer is lost.
        seed: the seed of the faults.
        hook: called with the name of each step before it is done.

    Examples:
        >>> with FakeSystem("shop", failure_rate=0.3) as shop:
        ...     _ = env.from_collection([1, 2]).sink_to(FakeTargetSink("shop"))
        ...     _ = env.execute("shop")
        >>> shop.records
        [1, 2]
    """

    name: str
    failure_rate: float = 0.0
    seed: int = 0
    hook: Callable[[str], None] = lambda _: None
    #: The committed records, in the order of their commits.
    records: list[Any] = field(default_factory=list)
    #: The marker of each place, keyed by `SinkPlace.key`.
    markers: dict[str, Marker] = field(default_factory=dict)
    #: The number of connections that have fenced others, keyed by `SinkPlace.key`.
    epochs: Counter[str] = field(default_factory=Counter)
    #: The number of faults of each step.
    faults: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self._random = random.Random(self.seed)
        _SYSTEMS[self.name] = self

    def __enter__(self) -> FakeSystem:
        return self

    def __exit__(self, *_: object) -> None:
        _SYSTEMS.pop(self.name, None)

    def step(self, name: str) -> None:
        """Call the hook, and fail sometimes."""
        self.hook(name)
        if self._random.random() < self.failure_rate:
            self.faults[name] += 1
            raise ConnectionError(f"a simulated fault: {name}")

    def commit(self, key: str, marker: Marker, written: list[Any]) -> None:
        """Make records visible together with the marker of a place."""
        self.records += written
        self.markers[key] = marker


def fake_system(name: str) -> FakeSystem:
    """Return the system of a name."""
    return _SYSTEMS[name]


class FakeTargetSink(StagedSink[Any]):
    """Writes records to a `FakeSystem`, exactly once.

    The records are str, int, float, bool, None, bytes, and lists and dicts of these.

    Arguments:
        name: the name of the system.
    """

    def __init__(self, name: str) -> None:
        self.name = name

    def create_encoder(self, context: WriterContext) -> Callable[[list[Any]], PlainValue]:
        """Return a function that stages the records as they are."""
        del context
        return list

    def connect(self, place: SinkPlace) -> Target:
        """Return a connection to the system."""
        system = fake_system(self.name)
        system.step("connect")
        return _FakeTarget(system, place)


class _FakeTarget(Target):
    def __init__(self, system: FakeSystem, place: SinkPlace) -> None:
        self._system, self._key = system, place.key
        self._epoch = 0

    def fence(self) -> Marker | None:
        system = self._system
        system.step("fence")
        system.epochs[self._key] += 1
        self._epoch = system.epochs[self._key]
        system.step("read marker")
        return system.markers.get(self._key)

    def publish(self, marker: Marker, batches: Iterator[PlainValue]) -> None:
        system = self._system
        written: list[Any] = []
        for batch in batches:
            system.step("write")
            written += batch
        system.step("commit")
        if self._epoch != system.epochs[self._key]:
            raise ConnectionError("this writer was fenced")
        system.commit(self._key, marker, written)
        system.step("answer")
