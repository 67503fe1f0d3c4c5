"""The connectors of the package pass the tests that each connector should pass."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock import (
    CollectionSource,
    CsvRows,
    FileSink,
    FileSource,
    GeneratorSource,
    IterableSource,
    JsonLines,
    SequenceSource,
    TextLines,
)
from penstock.connectors.columns import ParquetSink
from penstock.testing.connectors import SinkConformance, SourceConformance

LINES = [f"line {number}" for number in range(30)]


@pytest.fixture(autouse=True)
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> None:
    request.instance.folder = tmp_path


class TestCollectionSource(SourceConformance):
    def create_source(self) -> Any:
        return CollectionSource(LINES)

    def expected(self) -> list[Any]:
        return LINES


class TestSequenceSource(SourceConformance):
    def create_source(self) -> Any:
        return SequenceSource(-3, 25)

    def expected(self) -> list[Any]:
        return list(range(-3, 26))


class TestGeneratorSource(SourceConformance):
    def create_source(self) -> Any:
        return GeneratorSource(lambda number: number * number, count=40)

    def expected(self) -> list[Any]:
        return [number * number for number in range(40)]


class TestEndlessGeneratorSource(SourceConformance):
    limit = 30

    def create_source(self) -> Any:
        return GeneratorSource(lambda number: number)


def shares(subtask: int, parallelism: int) -> Iterator[int]:
    return iter(range(subtask, 20, parallelism))


class TestIterableSource(SourceConformance):
    def create_source(self) -> Any:
        return IterableSource(shares)

    def expected(self) -> list[Any]:
        return list(range(20))


class TestIterableSourceThatNeverWaits(TestIterableSource):
    def create_source(self) -> Any:
        return IterableSource(shares, blocking=False)


class TestIterableSourceOfASequence(TestIterableSource):
    def create_source(self) -> Any:
        return IterableSource(lambda: range(20))


class TestFileSource(SourceConformance):
    folder: Path

    @pytest.fixture(autouse=True)
    def files(self, folder: None) -> None:
        for number, part in enumerate((LINES[:11], LINES[11:], [])):
            (self.folder / f"{number}.txt").write_text("".join(f"{line}\n" for line in part))

    def create_source(self) -> Any:
        return FileSource(self.folder, TextLines(), split_bytes=40)

    def expected(self) -> list[Any]:
        return LINES


class TestWatchingFileSource(TestFileSource):
    limit = 30

    def create_source(self) -> Any:
        return FileSource(self.folder, split_bytes=40, discovery_seconds=0.001, quiet_seconds=0)


class TestFileSourceOfCsv(SourceConformance):
    folder: Path

    @pytest.fixture(autouse=True)
    def files(self, folder: None) -> None:
        rows = "".join(f'{number},"a\n{number}"\n' for number in range(12))
        (self.folder / "rows.csv").write_text(f"id,text\n{rows}")

    def create_source(self) -> Any:
        return FileSource(self.folder, CsvRows(tuples=True))

    def expected(self) -> list[Any]:
        return [(str(number), f"a\n{number}") for number in range(12)]


class TestFileSink(SinkConformance):
    def create_sink(self, place: Path) -> Any:
        return FileSink(place, JsonLines())

    def read_output(self, place: Path) -> list[Any]:
        files = sorted(place.glob("part-*"))
        return [json.loads(line) for file in files for line in file.read_text().splitlines()]


class TestParquetSink(SinkConformance):
    def create_sink(self, place: Path) -> Any:
        pytest.importorskip("pyarrow")
        return ParquetSink(place, {"text": "string"}, row_group_rows=2)

    def record(self, number: int) -> Any:
        return {"text": f"record {number}"}

    def read_output(self, place: Path) -> list[Any]:
        parquet = pytest.importorskip("pyarrow.parquet")
        files = sorted(place.glob("part-*"))
        return [row for file in files for row in parquet.read_table(file).to_pylist()]
