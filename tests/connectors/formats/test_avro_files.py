"""Files of Avro: round trips, positions, evolution, and damage."""

from __future__ import annotations

import gzip
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import fastavro
import pytest

from penstock import FileSink, FileSource, GraphError, JobError, StreamExecutionEnvironment
from penstock.connectors.bad_messages import bad_messages_tag
from penstock.connectors.formats import AvroFiles
from penstock.dataflow.source import ReaderContext
from penstock.testing.connectors import SourceConformance

SCHEMA = {
    "type": "record",
    "name": "Item",
    "fields": [{"name": "n", "type": "long"}, {"name": "text", "type": "string"}],
}
ITEMS = [{"n": n, "text": f"item {n}"} for n in range(40)]


def written(path: Path, records: Any = ITEMS, codec: str = "deflate") -> Path:
    """Write a file with blocks of a few records."""
    with path.open("wb") as file:
        fastavro.writer(file, SCHEMA, records, codec, sync_interval=64)
    return path


def read(path: Path, format: AvroFiles, most: int = 7) -> tuple[list[Any], list[Any]]:
    """Return the records of a file, and the bad ones."""
    source = FileSource(path, format)
    enumerator: Any = source.create_enumerator(1)
    enumerator.start()
    records: list[Any] = []
    bad: list[Any] = []
    with closing(source.create_reader(ReaderContext("uid", 0, 1))) as reader:
        while (split := enumerator.next_split(0)) is not None:
            reader.open(split, None)
            finished = False
            while not finished:
                part = reader.read(most)
                records += part.records
                bad += part.side_output
                finished = part.finished
    return records, bad


@pytest.mark.parametrize("codec", ["null", "deflate", "bzip2", "xz"])
def test_what_a_sink_writes_others_and_sources_read(tmp_path: Path, codec: str) -> None:
    env = StreamExecutionEnvironment.get_execution_environment()
    format = AvroFiles(SCHEMA, codec=codec)
    many = ITEMS * 100
    env.from_collection(many).sink_to(FileSink(tmp_path / "out", format))
    env.execute()
    (part,) = (tmp_path / "out").glob("part-*.avro")
    with part.open("rb") as file:
        reader = fastavro.reader(file)
        assert list(reader) == many
        assert reader.codec == codec
    with part.open("rb") as file:
        assert len(list(fastavro.block_reader(file))) > 2
    assert read(part, AvroFiles())[0] == many


def test_a_file_may_be_compressed_as_a_whole(tmp_path: Path) -> None:
    path = tmp_path / "a.avro.gz"
    path.write_bytes(gzip.compress(written(tmp_path / "a.avro").read_bytes()))
    assert read(path, AvroFiles())[0] == ITEMS


def test_files_are_read_with_the_schema_of_the_source(tmp_path: Path) -> None:
    path = written(tmp_path / "a.avro")
    newer = {
        **SCHEMA,
        "fields": [{"name": "n", "type": "double"}, {"name": "x", "type": "int", "default": 7}],
    }
    assert read(path, AvroFiles(reader_schema=newer))[0] == [
        {"n": float(n), "x": 7} for n in range(40)
    ]
    wrong = {**SCHEMA, "fields": [{"name": "y", "type": "int"}]}
    with pytest.raises(JobError, match="cannot be read with reader_schema=: y: the writer has no"):
        read(path, AvroFiles(reader_schema=wrong))


@dataclass
class Item:
    n: int
    text: str


@dataclass
class Few:
    n: int
    more: int


def test_records_that_are_not_of_the_type_are_bad(tmp_path: Path) -> None:
    path = written(tmp_path / "a.avro")
    assert read(path, AvroFiles(type=Item))[0] == [Item(**item) for item in ITEMS]
    with pytest.raises(JobError, match=r"a\.avro, record 1: a record is not of the type"):
        read(path, AvroFiles(type=Few))
    records, bad = read(path, AvroFiles(type=Few, on_error="side_output"))
    assert (records, len(bad)) == ([], 40)
    tag, first = bad[0]
    assert tag == bad_messages_tag()
    assert (first.message, first.place) == (b"\x00\x0citem 0", f"{path}, record 1")
    assert read(path, AvroFiles(type=Few, on_error="skip")) == ([], [])


def test_a_damaged_file_fails_the_job(tmp_path: Path) -> None:
    path = written(tmp_path / "a.avro")
    data = path.read_bytes()
    path.write_bytes(b"no file of Avro")
    with pytest.raises(JobError, match="is not a file of Avro"):
        read(path, AvroFiles())
    for broken in (data[:-30], data[:300] + b"\xff" * 8 + data[308:]):
        path.write_bytes(broken)
        with pytest.raises(JobError, match="is damaged behind record"):
            read(path, AvroFiles(on_error="skip"))
    path.write_bytes(b"")
    assert read(path, AvroFiles()) == ([], [])


def test_a_file_with_fewer_records_than_before_is_said(tmp_path: Path) -> None:
    path = written(tmp_path / "a.avro")
    source = FileSource(path, AvroFiles())
    enumerator: Any = source.create_enumerator(1)
    enumerator.start()
    with closing(source.create_reader(ReaderContext("uid", 0, 1))) as reader:
        reader.open(enumerator.next_split(0), 41)
        with pytest.raises(JobError, match="has 40 records, and 41 were read before the snapshot"):
            reader.read(10)


def test_wrong_arguments_are_refused() -> None:
    with pytest.raises(GraphError, match="codec of AvroFiles is one of"):
        AvroFiles(SCHEMA, codec="zip")
    with pytest.raises(GraphError, match="not a valid Avro schema"):
        AvroFiles("{")
    with pytest.raises(GraphError, match="a sink needs the schema"):
        AvroFiles().create_encoder()
    with pytest.raises(JobError, match="AvroFiles cannot write a record") as caught:
        AvroFiles(SCHEMA).create_encoder()([{"n": 1, "text": "a", "more": 1}])
    assert caught.value.record == "{'n': 1, 'text': 'a', 'more': 1}"


class TestAvroFiles(SourceConformance):
    @pytest.fixture(autouse=True)
    def folder(self, tmp_path: Path) -> None:
        self.folder_path = tmp_path
        written(tmp_path / "a.avro", ITEMS[:25])
        written(tmp_path / "b.avro", ITEMS[25:], "null")

    def create_source(self) -> Any:
        return FileSource(self.folder_path, AvroFiles())

    def expected(self) -> Any:
        return ITEMS


def test_objects_in_a_store_are_files_of_avro_too(tmp_path: Path) -> None:
    pytest.importorskip("obstore")
    from penstock.connectors.object_store import ObjectStore, ObjectStoreSink, ObjectStoreSource

    env = StreamExecutionEnvironment.get_execution_environment()
    env.set_parallelism(2)
    (tmp_path / "out").mkdir()
    store = ObjectStore(f"file://{tmp_path}/out")
    env.from_collection(ITEMS).sink_to(ObjectStoreSink(store, AvroFiles(SCHEMA)))
    env.execute()
    env = StreamExecutionEnvironment.get_execution_environment()
    found = env.from_source(ObjectStoreSource(store, AvroFiles(type=Item)))
    assert sorted(item.n for item in found.execute_and_collect()) == list(range(40))
