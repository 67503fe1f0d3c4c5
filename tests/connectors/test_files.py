"""`FileSource`: which files it takes, what it makes of them, and what it says of bad ones."""

import contextlib
import gzip
import os

import pytest

from penstock.connectors import CsvRows, FileSource, JsonLines, LineFormat, TextLines
from penstock.dataflow.errors import GraphError, JobError
from penstock.dataflow.source import ReaderContext, Split


def splits_of(source):
    enumerator = source.create_enumerator(1)
    enumerator.start()
    return list(iter(lambda: enumerator.next_split(0), None))


def read(source, max_records=1000):
    records = []
    with contextlib.closing(source.create_reader(ReaderContext("uid", 0, 1))) as reader:
        for split in splits_of(source):
            reader.open(split, None)
            finished = False
            while not finished:
                batch, _, finished, *_ = reader.read(max_records)
                records += batch
    return records


def names(source):
    return sorted({split.payload["path"].rsplit("/", 1)[1] for split in splits_of(source)})


@pytest.fixture
def tree(tmp_path):
    for name in ("a.txt", "b.csv", "sub/c.txt", "_staging/d.txt", ".git/e.txt", "sub/_f.txt"):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"{name}\n")
    return tmp_path


def test_a_folder_is_read_to_any_depth_without_hidden_names(tree):
    assert names(FileSource(tree)) == ["a.txt", "b.csv", "c.txt"]


def test_a_glob_takes_what_it_matches_without_hidden_names(tree):
    assert names(FileSource(f"{tree}/*.txt")) == ["a.txt"]
    assert names(FileSource(f"{tree}/**/*.txt")) == ["a.txt", "c.txt"]
    assert names(FileSource(f"{tree}/*")) == ["a.txt", "b.csv", "c.txt"]


def test_hidden_names_are_read_when_they_are_asked_for(tree):
    assert names(FileSource(tree / "sub/_f.txt")) == ["_f.txt"]
    assert names(FileSource(f"{tree}/sub/_*.txt")) == ["_f.txt"]
    assert names(FileSource(f"{tree}/_staging/*")) == ["d.txt"]


def test_a_file_that_two_paths_name_is_read_once(tree):
    assert read(FileSource([tree / "a.txt", f"{tree}/a*", f"file://{tree}/a.txt"])) == ["a.txt"]


def test_an_existing_file_with_wildcard_signs_in_its_name_is_no_glob(tmp_path):
    path = tmp_path / "a[1].txt"
    path.write_text("x\n")
    assert read(FileSource(path)) == ["x"]


def test_an_empty_folder_and_an_empty_file_give_nothing(tmp_path):
    assert read(FileSource(tmp_path)) == []
    (tmp_path / "empty.txt").touch()
    assert read(FileSource(tmp_path)) == []
    assert read(FileSource(tmp_path, CsvRows())) == []


@pytest.mark.parametrize("missing", ["none.txt", "none/*.txt", "**x/y"])
def test_a_path_that_names_nothing_is_refused_before_the_start_and_at_it(tmp_path, missing):
    source = FileSource(tmp_path / missing)
    with pytest.raises(GraphError, match=r"check the path|cannot be listed"):
        source.validate()
    with pytest.raises(JobError, match=str(tmp_path)):
        source.create_enumerator(1).start()


@pytest.mark.parametrize("paths", ["s3://bucket/x", "", [], [3], b"x"])
def test_what_is_no_local_path_is_refused(paths):
    with pytest.raises(GraphError):
        FileSource(paths)


def test_other_arguments_are_checked():
    with pytest.raises(GraphError, match="format"):
        FileSource("x", "csv")
    with pytest.raises(GraphError, match="split_bytes"):
        FileSource("x", split_bytes=0)


@pytest.mark.parametrize("encoding", ["utf-16", "cp037", "no-such", "hex"])
def test_an_encoding_that_cannot_be_cut_at_line_ends_is_refused(encoding):
    with pytest.raises(GraphError):
        TextLines(encoding=encoding)


def test_another_encoding_is_read_and_its_range_limits_are_bytes(tmp_path):
    path = tmp_path / "latin.txt"
    path.write_bytes("é\nü\nx".encode("latin-1"))
    assert read(FileSource(path, TextLines(encoding="latin-1"), split_bytes=1)) == ["é", "ü", "x"]


@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_bytes_that_cannot_be_decoded_are_told_with_file_and_place(tmp_path, suffix):
    path = tmp_path / f"bad.txt{suffix}"
    data = b"good\nb\xffd\n"
    path.write_bytes(gzip.compress(data) if suffix else data)
    with pytest.raises(JobError, match=rf"bad.txt{suffix}, {'line 2' if suffix else 'byte 6'}"):
        read(FileSource(path))
    assert read(FileSource(path, TextLines(errors="replace"))) == ["good", "b\ufffdd"]


@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_a_line_that_is_no_json_is_told_with_file_and_place(tmp_path, suffix):
    path = tmp_path / f"bad.jsonl{suffix}"
    data = b'{"a": "\r"}\n{"b": 2\n{}\n'.replace(b"\r", b"\\r")
    path.write_bytes(gzip.compress(data) if suffix else data)
    with pytest.raises(JobError, match="line 2" if suffix else "byte 12") as caught:
        read(FileSource(path, JsonLines()))
    assert caught.value.record == '{"b": 2'


def test_csv_values_may_hold_line_ends_and_rows_may_be_blank(tmp_path):
    path = tmp_path / "a.csv"
    path.write_bytes(b'\xef\xbb\xbfname,text\r\n"a","one\r\ntwo"\r\n\r\nb,\r\n')
    assert read(FileSource(path, CsvRows()), 1) == [
        {"name": "a", "text": "one\r\ntwo"},
        {"name": "b", "text": ""},
    ]
    assert read(FileSource(path, CsvRows(tuples=True)))[1] == ("b", "")


def test_csv_without_header_gives_tuples_or_the_given_names(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("1;'x;y'\n2;z\n")
    plain = CsvRows(header=False, delimiter=";", quote="'")
    assert read(FileSource(path, plain)) == [("1", "x;y"), ("2", "z")]
    named = CsvRows(["n", "s"], header=False, delimiter=";", quote="'")
    assert read(FileSource(path, named))[0] == {"n": "1", "s": "x;y"}


@pytest.mark.parametrize(
    ("data", "format", "words"),
    [
        (b"a,b\n1,2\n1,2,3\n", CsvRows(), "row 2 after the header: it has 3 fields instead of 2"),
        (b"a,a\n1,2\n", CsvRows(), "names a column twice"),
        (b"a,c\n1,2\n", CsvRows(["a", "b"]), "its header is"),
        (b"a,b\n1,\xff\n", CsvRows(), "cannot be decoded as utf-8"),
        (b"a\n" + b"x" * 200_000, CsvRows(), "field_size_limit"),
    ],
)
def test_csv_that_does_not_fit_is_told_with_its_file(tmp_path, data, format, words):
    path = tmp_path / "bad.csv"
    path.write_bytes(data)
    with pytest.raises(JobError, match=words) as caught:
        read(FileSource(path, format))
    assert str(path) in str(caught.value)


def test_csv_arguments_are_checked():
    for arguments in ({"fields": "ab"}, {"fields": ["a", "a"]}, {"delimiter": ", "}):
        with pytest.raises(GraphError):
            CsvRows(**arguments)


@pytest.mark.parametrize(
    "data", [b"no gzip at all", gzip.compress(b"x\n" * 999)[:-9]], ids=["other", "cut short"]
)
@pytest.mark.parametrize("format", [TextLines(), CsvRows()], ids=["lines", "rows"])
def test_a_damaged_gzip_file_is_told_by_its_name(tmp_path, data, format):
    path = tmp_path / "bad.gz"
    path.write_bytes(data)
    with pytest.raises(JobError, match=r"bad\.gz is not a whole gzip file"):
        read(FileSource(path, format))


@pytest.fixture
def listed(tmp_path):
    """A file of 20 bytes that a job has listed: the file, a reader and the split."""
    path = tmp_path / "a.txt"
    path.write_text("0123\n" * 4)
    source = FileSource(path)
    return path, source.create_reader(ReaderContext("uid", 0, 1)), splits_of(source)[0]


def test_a_file_that_vanished_is_told_by_its_name(listed):
    path, reader, split = listed
    path.unlink()
    with pytest.raises(JobError, match=r"a\.txt has vanished"):
        reader.open(split, None)


def test_a_file_that_shrank_is_refused_when_opened(listed):
    path, reader, split = listed
    path.write_text("0123\n")
    with pytest.raises(JobError, match="shrank from 20 to 5 bytes"):
        reader.open(split, 10)


def test_a_file_that_shrinks_while_it_is_read_is_refused(listed):
    path, reader, split = listed
    reader.open(split, None)
    assert reader.read(1).records == ["0123"]
    os.truncate(path, 5)
    with pytest.raises(JobError, match=r"ends at byte \d+, but had 20"):
        while not reader.read(1).finished:
            pass
    reader.close()


def test_a_file_that_was_rewritten_is_refused_unless_one_says_otherwise(listed):
    path, reader, split = listed
    os.utime(path, ns=(0, 0))
    with pytest.raises(JobError, match="written to since"):
        reader.open(split, 10)
    relaxed = FileSource(path, verify_unchanged=False).create_reader(ReaderContext("uid", 0, 1))
    relaxed.open(split, 10)
    assert relaxed.read(9).records == ["0123", "0123"]
    relaxed.close()


@pytest.mark.parametrize("text", ["new line\n" * 4, "0123\n" * 3 + "0124\n0123\n"])
def test_a_file_that_was_rewritten_and_is_larger_is_refused(listed, text):
    path, reader, split = listed
    path.write_text(text)
    os.utime(path, ns=(0, 0))
    with pytest.raises(JobError, match="written to since"):
        reader.open(split, 10)


def test_a_file_that_was_appended_to_is_read_as_it_was_listed(listed):
    path, reader, split = listed
    with path.open("a") as file:
        file.write("more\n")
    os.utime(path, ns=(0, 0))
    reader.open(split, 10)
    assert reader.read(9).records == ["0123", "0123"]
    reader.close()
    # Version 0.1 recorded no checksum of the ends.
    payload = {key: value for key, value in split.payload.items() if key != "ends"}
    reader.open(Split(split.id, payload), 10)
    reader.close()


def test_a_compressed_file_with_fewer_lines_than_were_read_is_refused(tmp_path):
    path = tmp_path / "a.gz"
    path.write_bytes(gzip.compress(b"x\n" * 3))
    source = FileSource(path)
    reader = source.create_reader(ReaderContext("uid", 0, 1))
    reader.open(splits_of(source)[0], 4)
    with pytest.raises(JobError, match="fewer lines or rows than the 4"):
        reader.read(1)
    reader.close()


def test_a_line_longer_than_a_chunk_comes_whole(tmp_path):
    path = tmp_path / "a.txt"
    long = "x" * 3_000_000
    path.write_text(f"{long}\nshort\n")
    assert read(FileSource(path, split_bytes=1 << 20)) == [long, "short"]


def test_a_format_of_ones_own_is_a_few_lines(tmp_path):
    class Numbers(LineFormat):
        extension = ".num"

        def parse(self, lines):
            return list(map(int, lines))

        def render(self, batch):
            return list(map(str, batch))

    path = tmp_path / "a.num"
    path.write_text("1\n2\nx\n")
    with pytest.raises(JobError, match=r"byte 4: a line is not valid Numbers: invalid literal"):
        read(FileSource(path, Numbers()))
    path.write_text("1\n2\n")
    assert read(FileSource(path, Numbers())) == [1, 2]
