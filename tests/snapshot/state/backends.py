"""Backends for tests: a codec, a fixture that makes backends, and how to drive their work."""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import msgpack

from penstock.dataflow.graph.keys import canonical
from penstock.snapshot.metadata.handles import KeyedHandle
from penstock.snapshot.state import KeyedBackend, run_at_once
from penstock.snapshot.state.cold.database import DatabaseEngine
from penstock.snapshot.state.rocksdb.database import ROCKSDB
from penstock.snapshot.state.sqlite.database import SQLITE, SqliteDatabase

GROUPS = 16


class PlainCodec:
    """msgpack with tuples."""

    def encode_value(self, value: Any) -> bytes:
        return msgpack.packb(value, strict_types=True, default=self._tuple)

    def encode_values(self, values: list[Any]) -> list[bytes]:
        return [self.encode_value(value) for value in values]

    def decode_value(self, data: bytes) -> Any:
        return msgpack.unpackb(data, ext_hook=lambda _, inner: tuple(self.decode_value(inner)))

    def encode_batch(self, records: list[Any]) -> bytes:
        return self.encode_value(records)

    def decode_batch(self, data: bytes) -> list[Any]:
        return self.decode_value(data)

    def is_immutable(self, value: Any) -> bool:
        if type(value) is tuple:
            return all(map(self.is_immutable, value))
        return not isinstance(value, list | dict)

    def _tuple(self, value: Any) -> msgpack.ExtType:
        return msgpack.ExtType(1, self.encode_value(list(value)))


@dataclass
class Maker:
    """Makes backends in folders of their own, and closes them."""

    root: Path
    engine: DatabaseEngine = ROCKSDB
    made: list[KeyedBackend] = field(default_factory=list)

    def __call__(self, groups: range = range(GROUPS), **options: Any) -> KeyedBackend:
        backend = KeyedBackend(
            folder=self.root / f"work-{len(self.made)}",
            codec=options.pop("codec", None) or PlainCodec(),
            canonical=canonical,
            max_parallelism=GROUPS,
            groups=groups,
            engine=options.pop("engine", self.engine),
            **options,
        )
        self.made.append(backend)
        return backend

    def tables(self, folder: Path) -> list[Path]:
        """The table files in a folder."""
        return sorted(folder.glob(TABLES[self.engine.name]))

    def restored(self, *handles: KeyedHandle, **options: Any) -> KeyedBackend:
        backend = self(**options)
        drive(backend.restore([(self.root, handle) for handle in handles]))
        return backend

    def snapshot(self, backend: KeyedBackend, number: int) -> KeyedHandle:
        result = drive(backend.capture(number).write(self.root / f"{number}-{id(backend)}"))
        return result[0]


#: The names of table files, by the name of the engine.
TABLES = {"RocksDB": "*.sst", "SQLite": "*.changes"}
ENGINES = (ROCKSDB, SQLITE)
ENGINE_IDS = ("rocksdb", "sqlite")
#: SQLite that writes all rows again as soon as there are outdated ones.
_TIGHT: Any = {"slack_bytes": -(1 << 20)}
TIGHT_SQLITE = DatabaseEngine(
    SQLITE.name,
    partial(SqliteDatabase.create, **_TIGHT),
    partial(SqliteDatabase, **_TIGHT),
)


#: Drives slow work to its end, and returns its result.
drive = run_at_once


def fill(backend: KeyedBackend, count: int, value: Callable[[int], Any] = lambda i: i) -> None:
    table = backend.table("s")
    for i in range(count):
        table.put(f"k{i}", value(i))


def as_rows(backend: KeyedBackend) -> KeyedBackend:
    """The same as it is once it outgrew its memory: with rows in RocksDB instead of blocks."""
    backend.tables.mark_all_dirty()
    drive(backend.storage.open_rows(backend.tables))
    return backend


def contents(backend: KeyedBackend, state: str = "s") -> dict[Any, Any]:
    entries = list(backend.scan(state))
    assert len(entries) == len(dict(entries)), "a key occurs twice"
    return dict(entries)


def content_of_folder(folder: Path) -> dict[str, str]:
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }
