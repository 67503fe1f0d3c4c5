"""`ParquetSource` and `ArrowSource`: every row once, from every position; files that changed."""

import os

import pandas
import polars
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from penstock import ArrowSource, GraphError, JobError, ParquetSource, StreamExecutionEnvironment
from penstock.dataflow.source import ColumnarRead, ReaderContext

CONTEXT = ReaderContext("source", 0, 1)


def write(path, begin, end, **options):
    table = pa.table({"n": list(range(begin, end)), "s": [str(n) for n in range(begin, end)]})
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(table, path, **options)


def splits_of(source):
    enumerator = source.create_enumerator(2)
    enumerator.start()
    splits = []
    while (split := enumerator.next_split(0)) is not None:
        splits.append(split)
    return splits


def read(source, split, position=None, size=7):
    """The rows of a split from a position on, and each position with the rows before it."""
    reader, rows, positions = source.create_reader(CONTEXT), [], []
    reader.open(split, position)
    while True:
        got = reader.read(size)
        if isinstance(got, ColumnarRead):
            assert got.records.num_rows <= size
            rows += got.records.to_pylist()
        positions.append((got.position, len(rows)))
        if got.finished:
            reader.close()
            return rows, positions


@pytest.fixture
def folder(tmp_path):
    write(tmp_path / "in" / "a.parquet", 0, 40, row_group_size=9)
    write(tmp_path / "in" / "b" / "c.parquet", 40, 60)
    write(tmp_path / "in" / "_hidden.parquet", 900, 901)
    return tmp_path / "in"


@pytest.mark.parametrize("split_rows", [1, 10, 1000])
def test_every_row_of_a_folder_is_read_once(folder, split_rows):
    source = ParquetSource(folder, split_rows=split_rows)
    splits = splits_of(source)
    assert len(splits) == {1: 6, 10: 4, 1000: 2}[split_rows]
    rows = [row for split in splits for row in read(source, split)[0]]
    assert rows == [{"n": n, "s": str(n)} for n in range(60)]


def test_a_split_is_read_again_from_each_position(folder):
    for source in (ParquetSource(folder), ArrowSource(pa.table({"n": list(range(50))}))):
        for split in splits_of(source):
            rows, positions = read(source, split)
            for position, before in positions[:-1]:
                again, _ = read(source, split, position, size=11)
                assert again == rows[before:]


def test_columns_are_chosen_and_cast(folder):
    source = ParquetSource(folder, ["n"])
    assert read(source, splits_of(source)[1])[0][0] == {"n": 40}
    source = ParquetSource(folder, schema={"s": "string", "n": "float64"})
    assert read(source, splits_of(source)[1])[0][0] == {"s": "40", "n": 40.0}


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("missing",), "no such file"),
        (([],), "at least one path"),
        (("in", ["x"]), "no column 'x'; its columns are n, s"),
        (("in", "n"), "a list of names"),
        (("text.parquet",), "no Parquet file"),
        (("twice.parquet",), "twice.parquet has several columns 'n'"),
        (("twice.parquet", ["n"]), "twice.parquet has several columns 'n'"),
    ],
)
def test_what_cannot_be_read_is_refused_when_the_program_is_built(
    folder, monkeypatch, arguments, words
):
    monkeypatch.chdir(folder.parent)
    (folder.parent / "text.parquet").write_text("n,s\n1,2\n")
    twice = pa.Table.from_arrays([pa.array([1])] * 3, ["n", "n", "s"])
    pq.write_table(twice, folder.parent / "twice.parquet")
    env = StreamExecutionEnvironment.get_execution_environment()
    with pytest.raises(GraphError, match=words):
        env.from_source(ParquetSource(*arguments), None, "files")


def test_a_file_that_has_changed_or_gone_is_an_error(folder):
    path = folder / "a.parquet"
    source = ParquetSource(path)
    [split] = splits_of(source)
    os.utime(path, ns=(1, 1))
    assert len(read(source, split)[0]) == 40  # only its time has changed
    write(path, 0, 41)
    with pytest.raises(JobError, match="was changed since the job listed it"):
        read(source, split)
    path.unlink()
    with pytest.raises(JobError, match="has vanished since the job listed it"):
        read(source, split)


def test_a_file_with_other_types_says_which_column(folder):
    pq.write_table(pa.table({"n": ["x"], "s": ["y"]}), folder / "b" / "c.parquet")
    source = ParquetSource(folder, schema={"n": "int64"})
    with pytest.raises(JobError, match="column 'n' does not fit the schema"):
        read(source, splits_of(source)[1])


def test_an_arrow_source_takes_tables_and_data_frames():
    table = pa.table({"n": [1, 2, 3]})
    [batch] = table.to_batches()
    for given in (table, batch, pandas.DataFrame({"n": [1, 2, 3]}), polars.DataFrame(table)):
        source = ArrowSource(given)
        rows = [row for split in splits_of(source) for row in read(source, split)[0]]
        assert rows == [{"n": 1}, {"n": 2}, {"n": 3}]
    assert splits_of(ArrowSource(table.slice(0, 0))) == []
    indexed = pandas.DataFrame({"n": [1], "m": [2], "k": [3]}).set_index("n")
    assert ArrowSource(indexed).table.to_pylist() == [{"n": 1, "m": 2, "k": 3}]
    assert ArrowSource(indexed.set_index("m", append=True)).table.column_names == ["n", "m", "k"]
    assert ArrowSource(indexed.rename_axis(None)).table.to_pylist() == [{"m": 2, "k": 3}]
    with pytest.raises(GraphError, match="takes a pyarrow Table"):
        ArrowSource([{"n": 1}])
    with pytest.raises(GraphError, match="several columns 'n'"):
        ArrowSource(pa.table([[1], [2]], names=["n", "n"]))


def test_rows_of_a_columnar_source_are_dicts_for_other_functions(folder):
    env = StreamExecutionEnvironment.get_execution_environment()
    env.set_in_process(True)
    stream = env.from_source(ParquetSource(folder), None, "files")
    even = stream.filter(lambda row: row["n"] % 2 == 0).map(lambda row: row["s"])
    assert sorted(even.execute_and_collect(), key=int) == [str(n) for n in range(0, 60, 2)]
