"""`FileSource` watches a folder: which files it reads, when, and what it remembers."""

from __future__ import annotations

import gzip
import logging
import os
from pathlib import Path
from typing import Any

import pytest

from penstock import (
    CsvRows,
    FileSource,
    GraphError,
    JobError,
    JsonLines,
    StreamExecutionEnvironment,
)
from penstock.connectors import compressed_files, file_watch
from penstock.connectors.file_source import found_file
from penstock.dataflow.errors import Recoverability
from penstock.dataflow.source import ReaderContext, Split
from penstock.dataflow.time import Duration
from tests.connectors.zstandard import compressed


class Watched:
    """A source that watches a folder under a clock of the test, and its enumerator."""

    def __init__(self, path: Any, quiet: float = 5.0, **options: Any) -> None:
        self.now = 100.0
        self.source = FileSource(
            path, discovery_seconds=1.0, quiet_seconds=quiet, clock=lambda: self.now, **options
        )
        self.enumerator: Any = self.source.create_enumerator(2)
        self.enumerator.start()

    def after(self, seconds: float) -> list[str]:
        """Return the names of the files that are found when some time has passed."""
        self.now += seconds
        return [Path(split.payload["path"]).name for split in self.splits()]

    def splits(self) -> list[Split]:
        found = []
        while (split := self.enumerator.next_split(0)) is not None:
            found.append(split)
        return found

    def restarted(self) -> None:
        """Continue from a snapshot of this moment, in another process."""
        state = self.enumerator.snapshot()
        self.now += 1e6  # the clock of another machine
        self.enumerator = self.source.create_enumerator(3)
        self.enumerator.restore(state)


def read(source: FileSource, split: Split) -> list[Any]:
    reader = source.create_reader(ReaderContext("uid", 0, 1))
    reader.open(split, None)
    records: list[Any] = []
    finished = False
    while not finished:
        part = reader.read(100)
        records += part.records
        finished = part.finished
    reader.close()
    return records


def test_a_file_is_read_when_it_has_not_changed_for_a_while(tmp_path: Path):
    watched = Watched(tmp_path)
    (tmp_path / "a").write_text("1\n")
    assert watched.after(0) == []
    assert watched.after(4.9) == []
    (tmp_path / "a").write_text("1\n2\n")
    assert watched.after(4.9) == [], "it was written to meanwhile"
    assert watched.after(4.9) == []
    os.utime(tmp_path / "a", ns=(1, 1))
    assert watched.after(4.9) == []
    assert watched.after(5.0) == ["a"]
    assert watched.after(100) == []


def test_files_that_are_moved_into_place_are_read_at_once(tmp_path: Path):
    watched = Watched(tmp_path, quiet=0)
    (tmp_path / "_a").write_text("1\n2\n")
    (tmp_path / ".b").write_text("1\n2\n")
    (tmp_path / "empty").touch()
    assert watched.after(0) == []
    (tmp_path / "_a").rename(tmp_path / "a")
    (tmp_path / "deep" / "er").mkdir(parents=True)
    (tmp_path / ".b").rename(tmp_path / "deep" / "er" / "b")
    assert watched.after(0.5) == [], "it is not time to look"
    assert watched.after(0.5) == ["a", "b"]
    (tmp_path / "empty").write_text("now\n")
    assert watched.after(1) == ["empty"]


def test_patterns_and_new_subfolders_are_watched(tmp_path: Path):
    watched = Watched([tmp_path / "logs" / "*" / "*.jsonl"], quiet=0, format=JsonLines())
    with pytest.raises(GraphError, match=f"there is no folder {tmp_path}/logs"):
        watched.source.validate()
    with pytest.raises(JobError, match="cannot be watched") as caught:
        watched.after(0)
    assert caught.value.recoverability is Recoverability.ENVIRONMENT
    (tmp_path / "logs").mkdir()
    watched.source.validate()
    assert watched.after(1) == []
    (tmp_path / "logs" / "x").mkdir()
    (tmp_path / "logs" / "x" / "1.jsonl").write_text("{}\n")
    (tmp_path / "logs" / "x" / "1.txt").write_text("no\n")
    assert watched.after(1) == ["1.jsonl"]


def test_what_was_found_is_in_the_snapshots(tmp_path: Path):
    watched = Watched(tmp_path, quiet=0, split_bytes=4)
    for name in ("a", "b"):
        (tmp_path / name).write_text("one\ntwo\n")
    assert watched.enumerator.next_split(0).payload["start"] == 0
    watched.restarted()
    assert watched.after(0) == ["a", "b", "b"]
    watched.restarted()
    assert watched.after(1) == []
    (tmp_path / "c").write_text("x\n")
    watched.restarted()
    assert watched.after(1) == ["c"]


def test_a_file_that_changes_after_it_was_found_is_said_once(tmp_path: Path, caplog: Any):
    watched = Watched(tmp_path, quiet=0)
    for name in ("grown", "shrunk", "touched", "same"):
        (tmp_path / name).write_text("one\ntwo\n")
    assert len(watched.after(0)) == 4
    watched.restarted()
    (tmp_path / "grown").write_text("one\ntwo\nthree\n")
    (tmp_path / "shrunk").write_text("")
    os.utime(tmp_path / "touched", ns=(1, 1))
    with caplog.at_level(logging.WARNING, "penstock.connectors"):
        assert watched.after(1) == []
        said = [record.getMessage() for record in caplog.records]
        assert watched.after(1) == []
    assert len(caplog.records) == len(said) == 3
    assert f"{tmp_path}/grown has changed since it was found, and has 14 bytes now" in said[0]
    assert f"{tmp_path}/shrunk" in said[1] and "quiet_seconds" in said[1]


def test_a_removed_file_does_no_harm_and_is_not_read_again_if_it_comes_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(file_watch, "LEAST_REMOVED", 2)
    watched = Watched(tmp_path / "in", quiet=0)
    (tmp_path / "in").mkdir()
    for name in ("a", "b", "c"):
        (tmp_path / "in" / name).write_text(name)
    assert watched.after(0) == ["a", "b", "c"]
    (tmp_path / "in").rename(tmp_path / "away")  # as a share that is not mounted
    (tmp_path / "in").mkdir()
    assert watched.after(1) == []
    watched.restarted()
    (tmp_path / "in").rmdir()
    (tmp_path / "away").rename(tmp_path / "in")
    assert watched.after(1) == []
    (tmp_path / "in" / "b").unlink()
    assert watched.after(1) == []
    (tmp_path / "in" / "b").write_text("a new file")
    assert watched.after(1) == ["b"]


def test_the_memory_of_removed_files_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(file_watch, "LEAST_REMOVED", 3)
    watched = Watched(tmp_path, quiet=0)
    for number in range(10):
        (tmp_path / f"{number}").write_text("x")
        assert watched.after(1) == [str(number)]
        (tmp_path / f"{number}").unlink()
    watched.after(1)
    state = watched.enumerator.snapshot()
    assert (len(state["seen"]), len(state["removed"])) == (0, 3 * 16)


def test_a_file_that_vanishes_while_it_is_found_is_unknown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    watched = Watched(tmp_path, quiet=0)
    path = tmp_path / "a"
    path.write_text("x\n")
    found = file_watch.FileWatch.find

    def find_and_lose(self: Any) -> Any:
        ready = found(self)
        path.unlink(missing_ok=True)
        return ready

    with monkeypatch.context() as patch:
        patch.setattr(file_watch.FileWatch, "find", find_and_lose)
        assert watched.after(0) == []
    path.write_text("x\n")
    assert watched.after(1) == ["a"]


def test_compressed_files_are_read_whole_or_refused(tmp_path: Path):
    lines = [f"line {number}" for number in range(1000)]
    text = "".join(f"{line}\n" for line in lines).encode()
    (tmp_path / "a.gz").write_bytes(gzip.compress(text))
    # Two frames, as of files that were put together.
    (tmp_path / "b.zst").write_bytes(compressed(text[:500]) + compressed(text[500:]))
    (tmp_path / "c.csv.zst").write_bytes(compressed(b"a,b\n1,2\n"))
    watched = Watched(tmp_path, quiet=0)
    watched.source.validate()
    first, second, third = watched.splits()
    assert read(watched.source, first) == read(watched.source, second) == lines
    table = FileSource(tmp_path / "c.csv.zst", CsvRows())
    assert read(table, third) == [{"a": "1", "b": "2"}]
    whole = compressed(text)
    for damaged in (whole[:-4], b"no zstd at all\n", whole[:30] + b"xx" + whole[32:]):
        (tmp_path / "d.zst").write_bytes(damaged)
        (split,) = Watched(tmp_path / "d.*", quiet=0).splits()
        with pytest.raises(JobError, match="is not a whole Zstandard file"):
            read(watched.source, split)


def test_without_a_module_for_zstandard_the_program_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    (tmp_path / "a.zst").write_bytes(compressed(b"x\n"))

    def missing() -> Any:
        raise ImportError

    monkeypatch.setattr(compressed_files, "_zstd", missing)
    env = StreamExecutionEnvironment.get_execution_environment()
    with pytest.raises(GraphError, match=r"pip install 'penstock\[zstd\]'"):
        env.from_source(FileSource(tmp_path))


def test_a_source_is_made_a_watching_one(tmp_path: Path):
    source = FileSource(tmp_path)
    for interval in (2_000, Duration.of_seconds(2)):
        watching = source.monitor_continuously(interval)
        assert watching.discovery_seconds == 2.0 and not watching.ends
    assert source.discovery_seconds is None and source.ends
    with pytest.raises(GraphError):
        source.monitor_continuously(0)
    for wrong in ({"discovery_seconds": 0}, {"quiet_seconds": -1}):
        with pytest.raises(GraphError):
            FileSource(tmp_path, **wrong)
    (tmp_path / "file").write_text("x")
    with pytest.raises(GraphError, match="it is a file"):
        FileSource(tmp_path / "file", discovery_seconds=1).validate()


def test_snapshots_of_sources_that_watch_and_that_do_not(tmp_path: Path):
    (tmp_path / "a").write_text("x\n")
    watched = Watched(tmp_path, quiet=0)
    plain = FileSource(tmp_path).create_enumerator(1)
    plain.start()
    with pytest.raises(GraphError, match="did not watch its folders"):
        watched.enumerator.restore(plain.snapshot())
    watched.enumerator._add(found_file(tmp_path / "a"))
    plain.restore(watched.enumerator.snapshot())
    assert plain.next_split(0) is not None and plain.next_split(0) is None
    state = {"left": [], "seen": b"odd", "removed": b""}
    with pytest.raises(GraphError, match="is damaged"):
        watched.enumerator.restore(state)
