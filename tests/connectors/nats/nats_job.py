"""A job from a stream of NATS to another one, which is killed, and what its output must be."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable
from itertools import pairwise
from typing import Any

from penstock import RestartStrategies, StreamExecutionEnvironment
from penstock.connectors.formats import Json
from penstock.connectors.nats import NatsMessage, NatsStreamSink, NatsStreamSource
from penstock.dataflow.source import Read, ReaderContext, SourceReader, Split
from penstock.testing.servers.nats import NatsServer
from tests.connectors.nats.streams import Streams
from tests.processes.harness import Settings, compared
from tests.processes.parts import LOOK_SECONDS, has_let_all_go

SUBJECTS = 2
KEYS = 97


def number_of(message: NatsMessage) -> int:
    """Return the number that a message has."""
    return int(message.data)


class HeldStream(NatsStreamSource[int]):
    """Holds back messages until parts of them are let go, so that the job outlives its kills."""

    def __init__(self, settings: Settings, name: str, url: str) -> None:
        subjects = [f"{name}.{index}" for index in range(SUBJECTS)]
        super().__init__(
            name, url, subjects=subjects, decode=number_of, bounded=True, fetch_size=200
        )
        self.gate, self.parts, self.count = settings.gate, settings.parts, settings.count

    @property
    def reads_in_turns(self) -> bool:
        return True

    def create_reader(self, context: ReaderContext) -> SourceReader:
        return _HeldReader(self, super().create_reader(context))


class _HeldReader(SourceReader):
    blocking = True

    def __init__(self, source: HeldStream, reader: SourceReader) -> None:
        self._source, self._reader = source, reader
        self._position: Any = None

    def open(self, split: Split, position: Any) -> None:
        self._position = position
        self._reader.open(split, position)

    def read(self, max_records: int) -> Read:
        source = self._source
        if not has_let_all_go(source.gate):
            let_go = len(list(source.gate.iterdir())) if source.gate.exists() else 0
            done = 0 if self._position is None else self._position[0]
            if done >= source.count * (let_go + 1) // source.parts:
                return Read([], self._position, False, LOOK_SECONDS)
            max_records = min(max_records, 50)
        read = self._reader.read(max_records)
        self._position = read.position
        return read

    def close(self) -> None:
        self._reader.close()


def fill(streams: Streams, name: str, count: int) -> None:
    """Make the streams of a job, and write its input."""
    streams.make(name)
    streams.make(f"{name}_OUT")
    # By turns, so that both subjects are read from the start to the end.
    for first in range(0, count, 100):
        for index in range(SUBJECTS):
            streams.publish(f"{name}.{index}", range(first + index, first + 100, SUBJECTS))


def nats_job(settings: Settings, name: str, url: str) -> StreamExecutionEnvironment:
    """Return the job, which counts numbers by key and writes each count."""
    env = StreamExecutionEnvironment.get_execution_environment()
    env.set_parallelism(settings.parallelism)
    env.enable_checkpointing(settings.interval_ms)
    env.get_checkpoint_config().set_checkpoint_storage_dir(settings.job)
    env.set_restart_strategy(RestartStrategies.fixed_delay_restart(1000, 10))
    numbers = env.from_source(HeldStream(settings, name, url), None, "numbers").uid("numbers")
    pairs = numbers.map(lambda number, keys=KEYS: (number % keys, 1))
    counted = pairs.key_by(lambda pair: pair[0]).reduce(lambda a, b: (a[0], a[1] + b[1]))
    sink = NatsStreamSink[Any](f"{name}_OUT", f"{name}_OUT.counts", url, schema=Json())
    counted.uid("count").sink_to(sink).uid("counts")
    return env


def verdict(streams: Streams, name: str, count: int) -> tuple[int, int, int]:
    """Return how many counts are lost, how many doubled, and how many out of order."""
    decode = Json(tuple[int, int]).deserialize
    rows = decode([message.data for message in streams.messages(f"{name}_OUT")])
    totals = Counter(number % KEYS for number in range(count))
    wanted = {(key, n + 1) for key, total in totals.items() for n in range(total)}
    by_key: dict[int, list[int]] = defaultdict(list)
    for key, number in rows:
        by_key[key].append(number)
    disordered = sum(a > b for counts in by_key.values() for a, b in pairwise(counts))
    return *compared(Counter(rows), wanted), disordered


def restart(server: NatsServer) -> Callable[[], str]:
    """Return a function that kills a server, which cuts all connections, and starts it again."""

    def run() -> str:
        server.kill()
        server.start()
        return "server killed"

    return run
