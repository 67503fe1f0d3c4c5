"""Makes tables of both formats for tests, and reads their rows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa

from penstock.dataflow.source import ReaderContext

SCHEMA = pa.schema([("key", pa.string()), ("n", pa.int64())])


def create_delta(path: Path, schema: pa.Schema = SCHEMA, **options: Any) -> None:
    import deltalake

    deltalake.DeltaTable.create(str(path), deltalake.Schema.from_arrow(schema), **options)


def delta_rows(path: Path) -> list[dict[str, Any]]:
    import deltalake

    rows: list[dict[str, Any]] = deltalake.DeltaTable(str(path)).to_pyarrow_table().to_pylist()
    return rows


def append_delta(path: Path, rows: list[dict[str, Any]], schema: pa.Schema = SCHEMA) -> None:
    import deltalake

    deltalake.write_deltalake(str(path), pa.Table.from_pylist(rows, schema), mode="append")


def read_rows(source: Any) -> list[dict[str, Any]]:
    """Read a source that ends, by hand."""
    rows: list[dict[str, Any]] = []
    enumerator = source.create_enumerator(1)
    enumerator.start()
    while (split := enumerator.next_split(0)) is not None:
        reader = source.create_reader(ReaderContext("u", 0, 1))
        reader.open(split, None)
        finished = False
        while not finished:
            read = reader.read(100)
            finished = read.finished
            rows += read.records.to_pylist() if len(read.records) else []
        reader.close()
    assert enumerator.exhausted
    return rows


class Catalog:
    """A catalog of Iceberg tables in a folder."""

    def __init__(self, folder: Path, **settings: str) -> None:
        from pyiceberg.catalog import load_catalog

        folder.mkdir(parents=True, exist_ok=True)
        self.settings = {
            "type": "sql",
            "uri": f"sqlite:///{folder}/catalog.db",
            "warehouse": f"file://{folder}",
            **settings,
        }
        self.catalog = load_catalog("lake", **self.settings)
        self.catalog.create_namespace_if_not_exists("db")

    def create(self, name: str, schema: pa.Schema = SCHEMA, **options: Any) -> Any:
        return self.catalog.create_table(f"db.{name}", schema, **options)

    def table(self, name: str) -> Any:
        return self.catalog.load_table(f"db.{name}")

    def rows(self, name: str) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = self.table(name).scan().to_arrow().to_pylist()
        return rows

    def append(self, name: str, rows: list[dict[str, Any]]) -> None:
        table = self.table(name)
        table.append(pa.Table.from_pylist(rows, table.schema().as_arrow()))

    def close(self) -> None:
        self.catalog.close()
