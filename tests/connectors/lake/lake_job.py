"""A job that reads one table and writes another, and that does not end before its kills."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from penstock import RestartStrategies, StreamExecutionEnvironment
from penstock.connectors.lake import DeltaSink, DeltaSource, IcebergSink, IcebergSource
from penstock.connectors.lake.lake_source import LakeSource, _LakeEnumerator
from penstock.connectors.lake.table_store import TableStore
from penstock.connectors.object_store import ObjectStore
from penstock.dataflow.source import Split, SplitEnumerator
from tests.connectors.lake.tables import SCHEMA, Catalog, read_rows
from tests.processes.harness import Settings
from tests.processes.parts import has_let_all_go

WORDS = 97
FILES = 12


@dataclass(frozen=True)
class LakeSettings(Settings):
    """How the job is run.

    Arguments:
        kind: "delta", "iceberg", or "store" for Delta tables in an object store.
        url: the URL of a prefix that only this job uses, for "store".
        options: the options of the store.
        mode: of the sink.
    """

    kind: str = "delta"
    url: str = ""
    options: dict[str, Any] = field(default_factory=dict)
    mode: str = "append"

    def place(self, name: str) -> Any:
        """Return the place of a Delta table."""
        if self.kind == "store":
            return ObjectStore(f"{self.url}/{name}", retry_seconds=5, **self.options)
        return self.folder / name

    @property
    def catalog(self) -> dict[str, str]:
        folder = self.folder / "warehouse"
        return {
            "type": "sql",
            "uri": f"sqlite:///{folder}/catalog.db",
            "warehouse": f"file://{folder}",
        }

    def words(self) -> list[str]:
        return [f"word{i * 7919 % WORDS}" for i in range(self.count)]

    def expected(self) -> Counter[str]:
        """Return how often each word comes."""
        return Counter(self.words())

    def create_tables(self) -> None:
        """Create both tables, and write the input in several commits."""
        import deltalake

        words, size = self.words(), -(-self.count // FILES)
        parts = [words[i : i + size] for i in range(0, len(words), size)]
        if self.kind == "iceberg":
            catalog = Catalog(self.folder / "warehouse")
            catalog.create("output")
            catalog.create("input", pa.schema([("key", pa.string())]))
            for part in parts:
                catalog.append("input", [{"key": word} for word in part])
            catalog.close()
            return
        for name, schema in (("input", pa.schema([("key", pa.string())])), ("output", SCHEMA)):
            table = TableStore(self.place(name))
            options = table.delta_options
            found = deltalake.Schema.from_arrow(schema)
            deltalake.DeltaTable.create(table.uri, found, storage_options=options)
            for part in parts if name == "input" else ():
                rows = pa.table({"key": part})
                deltalake.write_deltalake(table.uri, rows, mode="append", storage_options=options)

    def read_output(self) -> list[tuple[str, int]]:
        """Return the rows that the job has published."""
        source: Any
        if self.kind == "iceberg":
            source = IcebergSource("lake.db.output", self.catalog)
        else:
            source = DeltaSource(self.place("output"))
        return [(row["key"], row["n"]) for row in read_rows(source)]


def _held(source: LakeSource, settings: LakeSettings) -> LakeSource:
    """Return a source that holds back files until parts of them are let go."""

    class Held(type(source)):  # type: ignore[misc]
        def create_enumerator(self, parallelism: int) -> SplitEnumerator:
            return HeldEnumerator(self)

    class HeldEnumerator(_LakeEnumerator):
        def next_split(self, subtask: int) -> Split | None:
            return None if self._is_held() else super().next_split(subtask)

        @property
        def exhausted(self) -> bool:
            return not self._is_held()

        def _is_held(self) -> bool:
            if not self._left or has_let_all_go(settings.gate):
                return False
            gate = settings.gate
            let_go = len(list(gate.iterdir())) if gate.exists() else 0
            number = FILES - len(self._left)
            return number >= FILES * (let_go + 1) // (settings.parts + 1)

    source.__class__ = Held
    return source


def lake_job(settings: LakeSettings) -> StreamExecutionEnvironment:
    """Return the program: words of a table, counted per word, into a table."""
    env = StreamExecutionEnvironment.get_execution_environment()
    env.set_parallelism(settings.parallelism)
    env.enable_checkpointing(settings.interval_ms)
    env.get_checkpoint_config().set_checkpoint_storage_dir(settings.job)
    env.set_restart_strategy(RestartStrategies.fixed_delay_restart(400, 10))
    source: Any
    sink: Any
    keys = ["key"] if settings.mode == "upsert" else []
    if settings.kind == "iceberg":
        source = IcebergSource("lake.db.input", settings.catalog)
        sink = IcebergSink("lake.db.output", settings.catalog, settings.mode, keys=keys)
    else:
        source = DeltaSource(settings.place("input"))
        sink = DeltaSink(settings.place("output"), settings.mode, keys=keys)
    rows = env.from_source(_held(source, settings), None, "input").uid("input")
    pairs = rows.map(lambda row: (row["key"], 1))
    counted = pairs.key_by(lambda pair: pair[0]).reduce(lambda a, b: (a[0], a[1] + b[1]))
    counted.uid("count").sink_to(sink).uid("output")
    return env


def lost_and_doubled_rows(settings: LakeSettings) -> tuple[int, int]:
    """Return how many rows of the output are missing, and how many are too many."""
    seen = Counter(settings.read_output())
    expected = settings.expected()
    if settings.mode == "upsert":
        wanted = set(expected.items())
    else:
        wanted = {(word, i + 1) for word, number in expected.items() for i in range(number)}
    return len(wanted - seen.keys()), seen.total() - len(wanted & seen.keys())
