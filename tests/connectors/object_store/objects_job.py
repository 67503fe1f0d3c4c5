"""A job that reads objects and writes objects, and that does not end before its kills."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

import obstore

from penstock import JsonLines, RestartStrategies, StreamExecutionEnvironment
from penstock.connectors.files_source import _FilesEnumerator
from penstock.connectors.object_store import ObjectStore, ObjectStoreSink, ObjectStoreSource
from penstock.dataflow.source import Split, SplitEnumerator
from tests.processes.harness import Settings
from tests.processes.parts import has_let_all_go

WORDS = 97


@dataclass(frozen=True)
class ObjectSettings(Settings):
    """How the job is run.

    Arguments:
        url: the URL of a prefix that only this job uses.
        options: the options of the store.
        objects: the number of objects that it reads.
        compact_bytes: of the sink.
    """

    url: str = ""
    options: dict[str, Any] = field(default_factory=dict)
    objects: int = 20
    compact_bytes: int = 0

    def store(self, below: str) -> ObjectStore:
        return ObjectStore(f"{self.url}/{below}", retry_seconds=5, **self.options)

    def words_of(self, number: int) -> list[str]:
        size = self.count // self.objects
        return [f"word{i * 7919 % WORDS}" for i in range(number * size, (number + 1) * size)]

    def expected(self) -> Counter[str]:
        """Return how often each word comes."""
        return Counter(word for n in range(self.objects) for word in self.words_of(n))

    def put_input(self) -> Counter[str]:
        """Put the objects that the job reads, and return how often each word comes."""
        store = self.store("in")
        for number in range(self.objects):
            data = "".join(f"{json.dumps(word)}\n" for word in self.words_of(number))
            obstore.put(store.open(), f"{store.prefix}/{number:03}.jsonl", data.encode())
        return self.expected()

    def read_output(self) -> list[Any]:
        """Return the records of all objects that the job has published."""
        store, records = self.store("out"), []
        opened = store.open()
        for meta in chain.from_iterable(obstore.list(opened, store.prefix)):
            data = bytes(obstore.get(opened, meta["path"]).bytes())
            records += [json.loads(line) for line in data.splitlines()]
        return records


class HeldObjects(ObjectStoreSource[Any]):
    """Holds back objects until parts of them are let go."""

    def __init__(self, settings: ObjectSettings) -> None:
        super().__init__(settings.store("in"), JsonLines(), split_bytes=2000)
        self.gate, self.parts, self.objects = settings.gate, settings.parts, settings.objects

    def create_enumerator(self, parallelism: int) -> SplitEnumerator:
        return _HeldEnumerator(self)


class _HeldEnumerator(_FilesEnumerator):
    _source: HeldObjects

    def next_split(self, subtask: int) -> Split | None:
        if self._is_held():
            return None
        return super().next_split(subtask)

    @property
    def exhausted(self) -> bool:
        return not self._is_held()

    def _is_held(self) -> bool:
        source = self._source
        if self._next >= len(self.splits) or has_let_all_go(source.gate):
            return False
        let_go = len(list(source.gate.iterdir())) if source.gate.exists() else 0
        number = int(self.splits[self._next].payload["key"][-9:-6])
        return number >= source.objects * (let_go + 1) // (source.parts + 1)


def objects_job(settings: ObjectSettings) -> StreamExecutionEnvironment:
    """Return the program: words of objects, counted per word, into objects."""
    env = StreamExecutionEnvironment.get_execution_environment()
    env.set_parallelism(settings.parallelism)
    env.enable_checkpointing(settings.interval_ms)
    env.get_checkpoint_config().set_checkpoint_storage_dir(settings.job)
    env.set_restart_strategy(RestartStrategies.fixed_delay_restart(400, 10))
    words = env.from_source(HeldObjects(settings), None, "objects").uid("objects")
    pairs = words.map(lambda word: (word, 1))
    counted = pairs.key_by(lambda pair: pair[0]).reduce(lambda a, b: (a[0], a[1] + b[1]))
    sink = ObjectStoreSink(
        settings.store("out"),
        JsonLines(),
        partition_by=lambda pair: f"last={pair[0][-1]}",
        compact_bytes=settings.compact_bytes,
        max_bytes=2000,
    )
    counted.uid("count").sink_to(sink).uid("out")
    return env
