"""`ObjectStoreSource` reads objects of a real server, each once, and never two versions of one."""

from __future__ import annotations

import gzip
import io
import itertools
import os
from typing import Any

import pytest

from penstock import CsvRows, GraphError, JobError, JsonLines, StreamExecutionEnvironment, TextLines
from penstock.connectors.object_store import (
    ObjectStore,
    ObjectStoreSource,
    ParquetRows,
    object_file,
)
from penstock.dataflow.errors import Recoverability
from penstock.dataflow.source import ReaderContext, Split
from penstock.testing.connectors import SourceConformance
from penstock.testing.servers.s3 import S3Server
from tests.connectors.zstandard import compressed

obstore: Any = pytest.importorskip("obstore")

LINES = [f"line {number}" for number in range(27)]
_NAMES = itertools.count()


def new_store(server: S3Server | None, prefix: str = "", **options: Any) -> ObjectStore:
    """Return a store with a bucket of its own: of the server, or in memory."""
    bucket = f"bucket-{os.getpid()}-{next(_NAMES)}"
    if server is None:
        return ObjectStore(f"memory://{bucket}{prefix}")
    server.create_bucket(bucket)
    return ObjectStore(f"s3://{bucket}{prefix}", **{**server.options, **options})


def put(store: ObjectStore, key: str, data: bytes | str) -> None:
    obstore.put(store.open(), key, data.encode() if isinstance(data, str) else data)


def below(store: ObjectStore, rest: str, **options: Any) -> ObjectStore:
    """Return the store of a URL in the same bucket."""
    options = {**store.options, "retry_seconds": store.retry_seconds, **options}
    return ObjectStore(f"{store.bucket}/{rest}", endpoint=store.endpoint, **options)


def text_of(lines: list[str]) -> str:
    return "".join(f"{line}\n" for line in lines)


# ---- conformance


class OfServer(SourceConformance):
    """The suite against the server, whose store is `self.store`."""

    @pytest.fixture(autouse=True)
    def objects(self, s3_server: S3Server) -> None:
        self.store = new_store(s3_server)
        self.fill()

    def fill(self) -> None:
        for number, part in enumerate((LINES[:11], LINES[11:])):
            put(self.store, f"in/{number}.txt", text_of(part))

    def create_source(self) -> Any:
        return ObjectStoreSource(self.store, split_bytes=40)

    def expected(self) -> list[Any]:
        return LINES


class TestLines(OfServer):
    pass


@pytest.mark.connectors
class TestCompressedLines(OfServer):
    def fill(self) -> None:
        put(self.store, "a.txt.gz", gzip.compress(text_of(LINES[:11]).encode()))
        put(self.store, "b.txt.zst", compressed(text_of(LINES[11:]).encode()))


class TestCsv(OfServer):
    def fill(self) -> None:
        rows = "".join(f'{number},"a\n{number}"\n' for number in range(12))
        put(self.store, "rows.csv", f"id,text\n{rows}")

    def create_source(self) -> Any:
        return ObjectStoreSource(self.store, CsvRows(tuples=True))

    def expected(self) -> list[Any]:
        return [(str(number), f"a\n{number}") for number in range(12)]


@pytest.mark.connectors
class TestNewObjects(OfServer):
    limit = len(LINES)

    def create_source(self) -> Any:
        return ObjectStoreSource(self.store, discovery_seconds=0.001)


class TestInMemory(OfServer):
    @pytest.fixture(autouse=True)
    def objects(self) -> None:
        self.store = new_store(None)
        self.fill()


@pytest.mark.connectors
class TestParquet(OfServer):
    def fill(self) -> None:
        pa = pytest.importorskip("pyarrow")
        import pyarrow.parquet as pq

        for number, part in enumerate((LINES[:20], LINES[20:])):
            out = io.BytesIO()
            rows = pa.table({"text": part, "other": range(len(part))})
            pq.write_table(rows, out, row_group_size=6)
            put(self.store, f"{number}.parquet", out.getvalue())

    def create_source(self) -> Any:
        return ObjectStoreSource(self.store, ParquetRows(["text"], split_rows=7))

    def expected(self) -> list[Any]:
        return [{"text": line} for line in LINES]


# ---- which objects


def keys(store: ObjectStore, rest: str) -> list[str]:
    source = ObjectStoreSource(below(store, rest))
    return [found.path.key for found in source.list_files()]


@pytest.mark.parametrize("real", [True, False])
def test_a_url_names_an_object_or_a_prefix_or_a_glob(s3_server: S3Server, real: bool):
    store = new_store(s3_server if real else None)
    names = ["a/1.txt", "a/b/2.gz", "a/b/c/2.txt", "a/_tmp/3.txt", "ab/4.txt", "a/.x", "z"]
    for name in names:
        put(store, name, "x\n")
    put(store, "a/empty", b"")
    assert keys(store, "a/1.txt") == ["a/1.txt"]
    assert keys(store, "a/_tmp/3.txt") == ["a/_tmp/3.txt"]
    assert keys(store, "a") == keys(store, "a/") == ["a/1.txt", "a/b/2.gz", "a/b/c/2.txt"]
    assert keys(store, "a/*.txt") == ["a/1.txt"]
    assert keys(store, "a/**/*.txt") == ["a/1.txt", "a/b/c/2.txt"]
    assert keys(store, "a/**") == keys(store, "a")
    assert keys(store, "a/b*") == ["a/b/2.gz", "a/b/c/2.txt"]
    assert keys(store, "[ab]?/*") == ["ab/4.txt"]
    assert keys(store, "a/_*/3.txt") == ["a/_tmp/3.txt"]
    assert keys(store, "") == ["a/1.txt", "a/b/2.gz", "a/b/c/2.txt", "ab/4.txt", "z"]
    with pytest.raises(JobError, match="names no object"):
        keys(store, "a/2.txt")


def test_an_object_that_two_urls_name_is_read_once(s3_server: S3Server):
    store = new_store(s3_server)
    put(store, "a/1.txt", "one\n")
    source = ObjectStoreSource([store, below(store, "a/*.txt")])
    env = StreamExecutionEnvironment.get_execution_environment()
    assert list(env.from_source(source).execute_and_collect()) == ["one"]


def test_new_objects_are_found_once_over_restarts(s3_server: S3Server):
    store = new_store(s3_server, "/in")
    now = [0.0]
    source = ObjectStoreSource(store, discovery_seconds=1, clock=lambda: now[0])
    source.validate()

    def found(enumerator: Any) -> list[str]:
        now[0] += 2
        splits = iter(lambda: enumerator.next_split(0), None)
        return [split.payload["key"] for split in splits]

    first: Any = source.create_enumerator(1)
    first.start()
    assert found(first) == []
    put(store, "in/b", "x\n")
    put(store, "in/a", "x\n")
    assert found(first) == ["in/a", "in/b"]
    put(store, "in/c", "x\n")
    second: Any = source.create_enumerator(2)
    second.restore(first.snapshot())
    assert not second.exhausted
    assert found(second) == ["in/c"]
    assert found(second) == []


# ---- objects that change


def read_all(source: ObjectStoreSource[Any], split: Split, position: Any = None) -> list[Any]:
    reader = source.create_reader(ReaderContext("uid", 0, 1))
    assert reader.blocking
    reader.open(split, position)
    records: list[Any] = []
    try:
        while True:
            read = reader.read(100)
            records += read.records
            if read.finished:
                return records
    finally:
        reader.close()


@pytest.mark.parametrize("real", [True, False])
def test_an_object_that_was_written_again_is_refused(s3_server: S3Server, real: bool):
    store = new_store(s3_server if real else None)
    put(store, "a.txt", text_of(LINES))
    source = ObjectStoreSource(store, split_bytes=40)
    first, *_, last = [split for found in source.list_files() for split in source.splits_of(found)]
    assert read_all(source, first) == LINES[:6]
    put(store, "a.txt", text_of([line.upper() for line in LINES]))  # of the same size
    with pytest.raises(JobError, match=r"a\.txt was written again since the job found it") as info:
        read_all(source, last)
    assert info.value.recoverability is Recoverability.NON_RECOVERABLE
    obstore.delete(store.open(), "a.txt")
    with pytest.raises(JobError, match=r"a\.txt has vanished since the job found it"):
        read_all(source, last)


def test_an_object_is_read_by_ranges(s3_server: S3Server, monkeypatch: pytest.MonkeyPatch):
    store = new_store(s3_server)
    put(store, "a.txt", text_of(LINES))
    monkeypatch.setattr(object_file, "_FIRST_RANGE", 64)
    monkeypatch.setattr(object_file, "_LARGEST_RANGE", 128)
    source = ObjectStoreSource(store)
    (found,) = source.list_files()
    (split,) = source.splits_of(found)
    assert read_all(source, split) == LINES
    ranges: list[tuple[int, int]] = []
    fetch = object_file.ObjectFile.fetch

    def noted(self: Any, start: int, end: int) -> bytes:
        ranges.append((start, end))
        return fetch(self, start, end)

    monkeypatch.setattr(object_file.ObjectFile, "fetch", noted)
    position = len(text_of(LINES[:20]))
    assert read_all(source, split, position) == LINES[20:]
    assert ranges[0][0] == position


# ---- stores that do not answer


def test_a_missing_bucket_is_named(s3_server: S3Server):
    store = ObjectStore("s3://there-is-none/in", **s3_server.options)
    for source in (ObjectStoreSource(store), ObjectStoreSource(store, discovery_seconds=1)):
        with pytest.raises(GraphError, match="no bucket for s3://there-is-none/in: create it"):
            source.validate()


def test_a_store_that_is_down_is_tried_for_a_while(s3_server: S3Server):
    store = new_store(s3_server)
    put(store, "a.txt", "x\n")
    down = below(store, "a.txt", retry_seconds=0.2)
    down.endpoint = "http://127.0.0.1:1"
    source = ObjectStoreSource(down)
    with pytest.raises(JobError, match=r"a\.txt cannot be listed.*tried for up to 0\.2 s") as info:
        source.list_files()
    assert info.value.recoverability is Recoverability.ENVIRONMENT


def test_arguments_are_checked():
    for url in ("words.txt", "ftp://x/y", "s3:/x", 5):
        with pytest.raises(GraphError, match="an object store is given as s3://bucket/prefix"):
            ObjectStore(url)  # type: ignore[arg-type]
    with pytest.raises(GraphError, match=r"cannot be opened.*'colour' is not valid"):
        ObjectStore("s3://b", colour="blue")
    with pytest.raises(GraphError, match="at least one URL"):
        ObjectStoreSource([])
    with pytest.raises(GraphError, match=r"the format of an object store source is TextLines"):
        ObjectStoreSource("memory://x", "csv")  # type: ignore[arg-type]
    with pytest.raises(GraphError, match="split_bytes"):
        ObjectStoreSource("memory://x", split_bytes=0)
    assert "secret" not in repr(
        ObjectStore("s3://b", access_key_id="a", secret_access_key="secret")
    )


def test_a_program_that_reads_lines(s3_server: S3Server):
    store = new_store(s3_server, "/logs/*.jsonl")
    put(store, "logs/1.jsonl", '{"n": 1}\n{"n": 2}\n')
    put(store, "logs/2.jsonl", '{"n": 3}\nnonsense\n')
    env = StreamExecutionEnvironment.get_execution_environment()
    with pytest.raises(JobError, match=r"s3://.*/logs/2\.jsonl, byte 9: a line is not valid JsonL"):
        list(env.from_source(ObjectStoreSource(store, JsonLines())).execute_and_collect())
    env = StreamExecutionEnvironment.get_execution_environment()
    env.set_parallelism(2)
    source = ObjectStoreSource(store, JsonLines(on_error="skip"))
    numbers = env.from_source(source).map(lambda value: value["n"])
    assert sorted(numbers.execute_and_collect()) == [1, 2, 3]
    assert TextLines().extension == ".txt"
