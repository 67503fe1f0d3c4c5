"""A job from streams of Redis to a stream, which is killed, and what its output must be.

The numbers of the input are counted by key, and each count is an entry of the output. So a record
that is lost or counted twice shows, and so does output that is written twice or out of order.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable
from itertools import pairwise
from typing import Any

from penstock import RestartStrategies, StreamExecutionEnvironment
from penstock.connectors.redis import RedisEntry, RedisStreamSink, RedisStreamSource
from penstock.dataflow.source import Read, ReaderContext, SourceReader, Split
from penstock.testing.servers.redis import RedisServer
from tests.processes.harness import Settings, compared
from tests.processes.parts import LOOK_SECONDS, has_let_all_go

STREAMS = 2
KEYS = 97


def number_of(entry: RedisEntry) -> int:
    """Return the number that an entry has."""
    return int(entry.fields["n"])


class HeldStreams(RedisStreamSource[int]):
    """Holds back entries until parts of them are let go, so that the job outlives its kills."""

    def __init__(self, settings: Settings, prefix: str, url: str) -> None:
        names = [f"{prefix}in{index}" for index in range(STREAMS)]
        super().__init__(names, url, decode=number_of, bounded=True, fetch_size=200)
        self.gate, self.parts, self.each = settings.gate, settings.parts, settings.count // STREAMS

    @property
    def reads_in_turns(self) -> bool:
        return True

    def create_reader(self, context: ReaderContext) -> SourceReader:
        return _HeldReader(self, super().create_reader(context))


class _HeldReader(SourceReader):
    blocking = True

    def __init__(self, source: HeldStreams, reader: SourceReader) -> None:
        self._source, self._reader = source, reader
        self._done, self._position = 0, None

    def open(self, split: Split, position: Any) -> None:
        self._position = position
        # The number of the entry is that of all before it, as the stream has never been trimmed.
        self._done = 0 if position is None else position[1]
        self._reader.open(split, position)

    def read(self, max_records: int) -> Read:
        source = self._source
        if not has_let_all_go(source.gate):
            let_go = len(list(source.gate.iterdir())) if source.gate.exists() else 0
            room = source.each * (let_go + 1) // source.parts - self._done
            if room <= 0:
                return Read([], self._position, False, LOOK_SECONDS)
            max_records = min(max_records, room)
        read = self._reader.read(max_records)
        self._done += len(read.records)
        self._position = read.position
        return read

    def close(self) -> None:
        self._reader.close()


def fill(client: Any, prefix: str, count: int) -> None:
    """Write the input."""
    for index in range(STREAMS):
        pipeline = client.pipeline(transaction=False)
        for number in range(index, count, STREAMS):
            pipeline.xadd(f"{prefix}in{index}", {"n": number})
        pipeline.execute()


def redis_job(settings: Settings, prefix: str, url: str) -> StreamExecutionEnvironment:
    """Return the job, which reads and writes the streams with a prefix."""
    env = StreamExecutionEnvironment.get_execution_environment()
    env.set_parallelism(settings.parallelism)
    env.enable_checkpointing(settings.interval_ms)
    env.get_checkpoint_config().set_checkpoint_storage_dir(settings.job)
    env.set_restart_strategy(RestartStrategies.fixed_delay_restart(1000, 10))
    numbers = env.from_source(HeldStreams(settings, prefix, url), None, "numbers").uid("numbers")
    pairs = numbers.map(lambda number, keys=KEYS: (number % keys, 1))
    counted = pairs.key_by(lambda pair: pair[0]).reduce(lambda a, b: (a[0], a[1] + b[1]))
    entries = counted.uid("count").map(lambda pair: {"key": pair[0], "count": pair[1]})
    sink = RedisStreamSink[Any](f"{prefix}out", url, script_records=50)
    entries.sink_to(sink).uid("counts")
    return env


def verdict(client: Any, prefix: str, count: int) -> tuple[int, int, int]:
    """Return how many counts are lost, how many doubled, and how many out of order."""
    entries = [fields for _, fields in client.xrange(f"{prefix}out")]
    rows = [(int(fields[b"key"]), int(fields[b"count"])) for fields in entries]
    totals = Counter(number % KEYS for number in range(count))
    wanted = {(key, n + 1) for key, total in totals.items() for n in range(total)}
    by_key: dict[int, list[int]] = defaultdict(list)
    for key, number in rows:
        by_key[key].append(number)
    disordered = sum(a > b for counts in by_key.values() for a, b in pairwise(counts))
    return *compared(Counter(rows), wanted), disordered


def restart(server: RedisServer) -> Callable[[], str]:
    """Return a function that kills a server and starts it again."""

    def run() -> str:
        server.kill()
        server.start()
        return "server killed"

    return run


def cut(client: Any) -> Callable[[], str]:
    """Return a function that cuts all other connections."""

    def run() -> str:
        for one in client.client_list():
            if one["name"] == "penstock":
                client.client_kill_filter(_id=one["id"])
        return "connections cut"

    return run
