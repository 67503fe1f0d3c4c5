"""Lines and rows that cannot be read: they fail the job, or are skipped, counted and said."""

from __future__ import annotations

import csv
import gzip
import logging
from collections import Counter
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from penstock import (
    BAD_MESSAGES,
    BadMessage,
    CsvRows,
    FileSource,
    GraphError,
    JobError,
    JsonLines,
    StreamExecutionEnvironment,
    TextLines,
    WatermarkStrategy,
)
from penstock.dataflow.errors import Recoverability
from penstock.dataflow.metrics import LINES_SKIPPED
from penstock.dataflow.source import ReaderContext
from penstock.testing.connectors import SourceConformance
from tests.connectors.zstandard import compressed

JSON = b'{"n": 1}\n{"n": \n\xff\xfe\n\n{"n": 2}\nnonsense\n{"n": 3}\n'
CSV = b'a,b\n1,2\n3\n"4\n4",5\n\n6,\xff\n7,8,9\nx\x00y,10\n11,12\n'
GOOD_ROWS = [("1", "2"), ("4\n4", "5"), ("11", "12")]


def read(path: Path, format: Any, most: int = 100, **options: Any) -> tuple[list[Any], int]:
    """Return the records of a file, and the number of lines that were skipped."""
    source = FileSource(path, format, **options)
    enumerator: Any = source.create_enumerator(1)
    enumerator.start()
    context = ReaderContext("uid", 0, 1)
    reader: Any = source.create_reader(context)
    records: list[Any] = []
    with closing(reader):
        while (split := enumerator.next_split(0)) is not None:
            reader.open(split, None)
            finished = False
            while not finished:
                part = reader.read(most)
                records += part.records
                finished = part.finished
    return records, context.metrics.counter(LINES_SKIPPED).count


def written(path: Path, data: bytes) -> Path:
    compress = {".gz": gzip.compress, ".zst": compressed}.get(path.suffix, bytes)
    path.write_bytes(compress(data))
    return path


@pytest.mark.parametrize("suffix", ["", ".gz", ".zst"])
@pytest.mark.parametrize("most", [1, 2, 100])
def test_bad_lines_are_skipped_and_said(tmp_path: Path, suffix: str, most: int, caplog: Any):
    path = written(tmp_path / f"a{suffix}", JSON)
    with caplog.at_level(logging.WARNING, "penstock.connectors"):
        records, skipped = read(path, JsonLines(on_error="skip"), most)
    assert records == [{"n": 1}, {"n": 2}, {"n": 3}]
    assert skipped == 3
    first, last = (record.getMessage() for record in caplog.records)
    place = "line 2" if suffix else "byte 9"
    assert first.startswith(f"a line is skipped, as later bad lines are: {path}, {place}: ")
    assert '{"n": ' in first
    assert last == f"3 bad lines were skipped in {path}"


def test_without_the_option_a_bad_line_fails_the_job_with_its_place(tmp_path: Path):
    path = written(tmp_path / "a", JSON)
    with pytest.raises(JobError, match=f"{path}, byte 9: a line is not valid JsonLines: Expecting"):
        read(path, JsonLines())
    path = written(tmp_path / "b", b"{}\n[\xff]\n")
    with pytest.raises(JobError, match=f"{path}, byte 4: cannot be decoded as utf-8"):
        read(path, JsonLines())
    with pytest.raises(JobError, match=r"JsonLines\(on_error='skip'\) skips and counts such lines"):
        read(path, JsonLines())
    with pytest.raises(GraphError, match='on_error of a file format is "fail", "skip"'):
        JsonLines(on_error="ignore")


def test_a_line_of_text_that_cannot_be_decoded_is_skipped(tmp_path: Path):
    path = written(tmp_path / "a", b"\xef\xbb\xbfone\r\n\xfftwo\nthree")
    assert read(path, TextLines(on_error="skip")) == (["one", "three"], 1)
    path = written(tmp_path / "a", b"\xff\n\xff")
    assert read(path, TextLines(on_error="skip")) == ([], 2)


@pytest.mark.parametrize("suffix", [".csv", ".gz", ".zst"])
@pytest.mark.parametrize("most", [1, 3, 100])
def test_bad_rows_are_skipped(tmp_path: Path, suffix: str, most: int):
    path = written(tmp_path / f"a{suffix}", CSV)
    limit = csv.field_size_limit(40)
    try:
        records, skipped = read(path, CsvRows(tuples=True, on_error="skip"), most)
        # Python 3.11 and later accept the null character.
        assert records == [*GOOD_ROWS[:2], ("x\0y", "10"), GOOD_ROWS[2]]
        assert skipped == 3
        data = b"a,b\n1,2\n" + b"x" * 50 + b",3\n4,5\n"
        records, skipped = read(written(path, data), CsvRows(tuples=True, on_error="skip"), most)
        assert (records, skipped) == ([("1", "2"), ("4", "5")], 1)
    finally:
        csv.field_size_limit(limit)


def test_a_bad_header_fails_the_job_all_the_same(tmp_path: Path):
    path = written(tmp_path / "a.csv", b"a,a\n1,2\n")
    with pytest.raises(JobError, match="names a column twice"):
        read(path, CsvRows(on_error="skip"))


def test_a_format_that_refuses_lines_only_together_is_said(tmp_path: Path):
    class Odd(TextLines):
        def parse(self, lines: list[str]) -> list[Any]:
            if len(lines) > 1:
                raise ValueError("too many")
            return lines

    path = written(tmp_path / "a", b"one\ntwo\n")
    for on_error in ("fail", "skip"):
        with pytest.raises(JobError, match="refuses these lines together"):
            read(path, Odd(on_error=on_error))


def test_a_damaged_file_is_no_failure_of_the_environment(tmp_path: Path):
    whole = gzip.compress(JSON)
    for data in (b"no gzip", whole[:-3], whole[:-8] + b"12345678"):
        (tmp_path / "a.gz").write_bytes(data)
        with pytest.raises(JobError, match="is not a whole gzip file") as caught:
            read(tmp_path / "a.gz", JsonLines(on_error="skip"))
        assert caught.value.recoverability is Recoverability.RECOVERABLE


def test_a_job_says_on_its_terminal_what_it_skips(tmp_path: Path, capfd: Any):
    path = written(tmp_path / "a", JSON)
    env = StreamExecutionEnvironment.get_execution_environment()
    numbers = env.from_source(FileSource(path, JsonLines(on_error="skip")))
    assert sorted(value["n"] for value in numbers.execute_and_collect()) == [1, 2, 3]
    said = capfd.readouterr().err
    assert f"3 bad lines were skipped in {path}" in said


PAIRS = [("1", "2"), ("4", "5"), ("9", "10")]
GOOD = [{"n": n} for _ in range(3) for n in (1, 2, 3)]


class _Skipping(SourceConformance):
    """Positions count bad lines, so each record comes once from any position."""

    name, data = "a", JSON * 3
    format: Any = JsonLines(on_error="skip")
    good: Any = GOOD

    @pytest.fixture(autouse=True)
    def folder(self, tmp_path: Path) -> None:
        self.path = written(tmp_path / self.name, self.data)

    def create_source(self) -> Any:
        return FileSource(self.path, self.format, split_bytes=25)

    def expected(self) -> list[Any]:
        return self.good


class TestSkippedLines(_Skipping):
    pass


class TestSkippedLinesOfCompressedFiles(_Skipping):
    name = "a.zst"


class TestSkippedRows(_Skipping):
    name, data = "a.csv", CSV.replace(b"x\0y", b'"' + b"x" * 200_000 + b'"')
    format = CsvRows(tuples=True, on_error="skip")
    good = GOOD_ROWS


def bad_lines(path: Path, format: Any, **options: Any) -> list[tuple[bytes, str, str]]:
    """Return the bad messages of a file: bytes, place and reason."""
    source = FileSource(path, format, **options)
    enumerator: Any = source.create_enumerator(1)
    enumerator.start()
    found = []
    with closing(source.create_reader(ReaderContext("uid", 0, 1))) as reader:
        while (split := enumerator.next_split(0)) is not None:
            reader.open(split, None)
            finished = False
            while not finished:
                part = reader.read(2)
                found += [(bad.message, bad.place, bad.reason) for _, bad in part.side_output]
                finished = part.finished
    return found


@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_bad_lines_go_to_a_side_output_as_they_are_in_the_file(tmp_path: Path, suffix: str):
    path = written(tmp_path / f"a{suffix}", JSON.replace(b"nonsense", b"nonsense\r"))
    found = bad_lines(path, JsonLines(on_error="side_output"))
    assert [message for message, *_ in found] == [b'{"n": ', b"\xff\xfe", b"nonsense"]
    assert found[0][1] == f"{path}, {'line 2' if suffix else 'byte 9'}"
    assert found[0][2].startswith("a line is not valid JsonLines: Expecting value")
    assert found[1][2].startswith("cannot be decoded as utf-8")


def test_bad_rows_go_to_a_side_output_as_they_are_in_the_file(tmp_path: Path):
    path = written(tmp_path / "a.csv", b'a,b\n1,2\n"3\n3"\n4,5\n6,\xff\r\n7,8,9\n10,11\n')
    found = bad_lines(path, CsvRows(tuples=True, on_error="side_output"))
    assert found == [
        (b'"3\n3"', f"{path}, row 2 after the header", "it has 1 fields instead of 2"),
        (b"6,\xff", f"{path}, row 4 after the header", "it cannot be decoded as utf-8"),
        (b"7,8,9", f"{path}, row 5 after the header", "it has 3 fields instead of 2"),
    ]
    limit = csv.field_size_limit(40)
    try:
        written(path, b"a,b\n" + b"x" * 50 + b",3\n4,5\n")
        (bad,) = bad_lines(path, CsvRows(on_error="side_output"))
    finally:
        csv.field_size_limit(limit)
    assert bad[0] == b"x" * 50 + b",3"
    assert bad[1:] == (f"{path}, line 2", bad[2])
    assert bad[2].startswith("not valid CSV: field larger than field limit")


def test_a_job_reads_good_and_bad_lines(tmp_path: Path):
    path = written(tmp_path / "a", JSON * 50)
    env = StreamExecutionEnvironment.get_execution_environment()
    env.set_parallelism(2)
    good = env.from_source(FileSource(path, JsonLines(on_error="side_output"), split_bytes=100))
    bad = good.get_side_output(BAD_MESSAGES).map(lambda one: one.message)
    both = good.map(lambda value: value["n"]).union(bad)
    found = Counter(both.execute_and_collect())
    assert found == {1: 50, 2: 50, 3: 50, b'{"n": ': 50, b"\xff\xfe": 50, b"nonsense": 50}


def test_a_file_of_bad_lines_only_is_read_with_event_time(tmp_path: Path):
    path = written(tmp_path / "a", b"[\n" * 100)
    env = StreamExecutionEnvironment.get_execution_environment()
    strategy = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(
        lambda value, _: value["time"]
    )
    good = env.from_source(FileSource(path, JsonLines(on_error="side_output")), strategy)
    bad = good.get_side_output(BAD_MESSAGES)
    assert [one.message for one in bad.execute_and_collect()] == [b"["] * 100


def test_a_side_output_that_nothing_reads_is_refused(tmp_path: Path):
    path = written(tmp_path / "a", JSON)
    env = StreamExecutionEnvironment.get_execution_environment()
    env.from_source(FileSource(path, JsonLines(on_error="side_output"))).print()
    with pytest.raises(GraphError, match=r"call get_side_output\(OutputTag\('bad-messages'\)\)"):
        env.execute()
    env = StreamExecutionEnvironment.get_execution_environment()
    with pytest.raises(GraphError, match=r"has no side outputs: call it on .* on_error='side_out"):
        env.from_source(FileSource(path, JsonLines())).get_side_output(BAD_MESSAGES)


class _SideOutput(_Skipping):
    """A read has good and bad records; both come once from any position."""

    format: Any = JsonLines(on_error="side_output")
    number_of_bad = 9

    def expected(self) -> list[Any]:
        bad = [
            (BAD_MESSAGES, BadMessage(message, reason, place))
            for message, place, reason in bad_lines(self.path, self.format, split_bytes=25)
        ]
        assert len(bad) == self.number_of_bad
        return [*self.good, *bad]


class TestSideOutputOfLines(_SideOutput):
    pass


class TestSideOutputOfRows(_SideOutput):
    name, data = "a.csv", b"a,b\n1,2\n3\n4,5\n6,7,8\n9,10\n"
    format = CsvRows(tuples=True, on_error="side_output")
    good: Any = PAIRS
    number_of_bad = 2
