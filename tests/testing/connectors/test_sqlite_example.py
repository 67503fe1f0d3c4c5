"""The example connectors for SQLite pass the tests that each connector should pass."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from examples.connectors.sqlite_sink import SqliteSink
from examples.connectors.sqlite_source import SqliteSource
from penstock.testing.connectors import SinkConformance, SourceConformance
from tests.processes.harness import PATIENCE

EXAMPLES = Path(__file__).resolve().parents[3] / "examples" / "connectors"
ROWS = [(f"product {number}", number) for number in range(25)]


def create_table(path: Path, rows: list[Any]) -> None:
    with closing(sqlite3.connect(path)) as database, database:
        database.execute("CREATE TABLE IF NOT EXISTS orders (product TEXT, quantity INTEGER)")
        database.executemany("INSERT INTO orders VALUES (?, ?)", rows)


class TestSqliteSource(SourceConformance):
    @pytest.fixture(autouse=True)
    def database(self, tmp_path: Path) -> None:
        self.path = tmp_path / "shop.db"
        create_table(self.path, ROWS)

    def create_source(self) -> Any:
        return SqliteSource(self.path, "orders")

    def expected(self) -> list[Any]:
        return ROWS


class TestSqliteSourceThatFollows(TestSqliteSource):
    limit = 25

    def create_source(self) -> Any:
        return SqliteSource(self.path, "orders", splits=2, follow=True)


class TestSqliteSink(SinkConformance):
    def create_sink(self, place: Path) -> Any:
        create_table(place / "shop.db", [])
        return SqliteSink(place / "shop.db", "orders", ["product", "quantity"])

    def record(self, number: int) -> Any:
        return f"product {number}", number

    def read_output(self, place: Path) -> list[Any]:
        with closing(sqlite3.connect(place / "shop.db")) as database:
            return database.execute("SELECT * FROM orders").fetchall()


@pytest.mark.parametrize(
    ("example", "output"),
    [
        ("sqlite_source.py", "[('tea', 2), ('tea', 3)]\n"),
        ("sqlite_sink.py", "[('be', 2), ('not', 3), ('to', 2)]\n"),
    ],
)
def test_an_example_prints_its_rows(example: str, output: str):
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / example)], capture_output=True, text=True, timeout=PATIENCE
    )
    assert done.stdout == output, done.stderr


class TestSinksOfOneDatabase(SinkConformance):
    """All places are tables of one database, with one table of commits."""

    @pytest.fixture(autouse=True)
    def database(self, tmp_path: Path) -> None:
        self.path = tmp_path / "all.db"

    def create_sink(self, place: Path) -> Any:
        with closing(sqlite3.connect(self.path)) as database, database:
            database.execute(f"CREATE TABLE IF NOT EXISTS {place.name} (product TEXT)")
        return SqliteSink(self.path, place.name, ["product"])

    def record(self, number: int) -> Any:
        return (f"product {number}",)

    def read_output(self, place: Path) -> list[Any]:
        with closing(sqlite3.connect(self.path)) as database:
            return database.execute(f"SELECT * FROM {place.name}").fetchall()
