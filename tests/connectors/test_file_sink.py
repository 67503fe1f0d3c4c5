"""`FileSink`: two phases, crashes between any two steps, names, formats, refusals."""

from collections import namedtuple
from dataclasses import replace
from pathlib import Path

import msgpack
import pytest

from penstock.connectors import CsvRows, FileSink, FileSource, JsonLines, TextLines
from penstock.connectors.staging_writer import sink_tag
from penstock.dataflow.errors import GraphError, JobError, Recoverability
from penstock.dataflow.sink import Committable, WriterContext
from penstock.dataflow.source import ReaderContext


class Task:
    """One writer, driven as a task drives it."""

    def __init__(self, sink, uid="sink", subtask=0, attempt=1, lineage="line"):
        self.context = WriterContext(uid, uid, subtask, 2, attempt, lineage)
        self.writer = sink.create_writer(self.context)

    def snapshot(self, number, *batches):
        for batch in batches:
            self.writer.write(batch)
        seal = self.writer.prepare(number)
        payloads = msgpack.unpackb(msgpack.packb(seal() if seal else []))
        ctx = self.context
        return [
            Committable(ctx.lineage, ctx.uid, ctx.subtask, number, ctx.attempt, payload)
            for payload in payloads
        ]


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "deep" / "out"


@pytest.fixture
def sink(folder):
    return FileSink(folder)


@pytest.fixture
def committer(sink):
    return sink.create_committer()


def visible(folder):
    return sorted(path for path in folder.iterdir() if path.name[0] != "_")


def content(folder):
    return [path.read_text() for path in visible(folder)]


def staged(folder):
    return list((folder / "_staging").iterdir())


def test_output_is_invisible_until_it_is_committed(sink, committer, folder):
    committables = Task(sink).snapshot(1, ["a", "b"], [], [3])
    assert visible(folder) == []
    committer.commit(committables)
    assert content(folder) == ["a\nb\n3\n"]
    assert staged(folder) == []


def test_what_is_written_after_the_cut_belongs_to_the_next_snapshot(sink, committer, folder):
    task = Task(sink)
    task.writer.write(["one"])
    seal = task.writer.prepare(1)
    task.writer.write(["two"])
    first = Committable("line", "sink", 0, 1, 1, seal()[0])
    second = task.snapshot(2)
    committer.commit([first, *second])
    assert content(folder) == ["one\n", "two\n"]


def test_a_snapshot_without_records_makes_no_file(sink, folder):
    task = Task(sink)
    assert task.writer.prepare(1) is None
    task.writer.write([])
    assert task.writer.prepare(2) is None
    assert not folder.exists()


def test_names_sort_by_snapshot_and_differ_by_sink_subtask_and_attempt(sink, committer, folder):
    tasks = [
        Task(sink, subtask=1),
        Task(sink, attempt=2),
        Task(sink, lineage="fork"),
        Task(sink, uid="a/b"),
        Task(sink, uid="a_b"),
        Task(sink),
    ]
    for number in (9, 10, 11):
        for task in tasks:
            committer.commit(task.snapshot(number, [str(number)]))
    assert content(folder) == ["9\n"] * 6 + ["10\n"] * 6 + ["11\n"] * 6


def test_committing_again_changes_nothing(sink, committer, folder):
    committables = Task(sink).snapshot(1, ["a"])
    for _ in range(3):
        committer.commit(committables)
    assert content(folder) == ["a\n"]


def test_a_crash_after_any_step_of_a_commit_is_made_good(sink, committer, folder, monkeypatch):
    steps = [(Path, "hardlink_to"), (Path, "unlink")]
    for number, (owner, name) in enumerate(steps):
        for crash_after in (1, 2):
            committables = Task(sink, attempt=number * 2 + crash_after).snapshot(1, ["a"])
            committables += Task(sink, subtask=1, attempt=number * 2 + crash_after).snapshot(
                1, ["b"]
            )
            real, calls = getattr(owner, name), []

            def crashing(*arguments, real=real, calls=calls, last=crash_after, **options):
                real(*arguments, **options)
                calls.append(1)
                if len(calls) == last:
                    raise KeyboardInterrupt

            with monkeypatch.context() as patch:
                patch.setattr(owner, name, crashing)
                with pytest.raises(KeyboardInterrupt):
                    committer.commit(committables)
            committer.commit(committables)
            assert staged(folder) == []
    assert content(folder) == ["a\n"] * 4 + ["b\n"] * 4


def test_a_name_that_is_taken_by_other_content_is_an_error(sink, committer, folder):
    committables = Task(sink).snapshot(1, ["a"])
    target = folder / committables[0].payload["target"]
    target.write_text("b\n")
    with pytest.raises(JobError, match="is there already with other content"):
        committer.commit(committables)
    assert target.read_text() == "b\n"
    target.unlink()
    committer.commit(committables)
    assert content(folder) == ["a\n"]


def test_output_that_somebody_removed_is_an_error_that_says_so(sink, committer, folder):
    committables = Task(sink).snapshot(7, ["a"])
    staged(folder)[0].unlink()
    with pytest.raises(JobError, match="output of snapshot 7 is lost"):
        committer.commit(committables)


def test_output_that_was_changed_is_an_error(sink, committer, folder):
    committables = Task(sink).snapshot(1, ["a"])
    path = staged(folder)[0]
    path.write_text("a\nb\n")
    with pytest.raises(JobError, match="it was changed, so"):
        committer.commit(committables)
    path.write_text("a\n")
    committer.commit(committables)
    visible(folder)[0].write_text("A\n")
    with pytest.raises(JobError, match="was changed after it was published"):
        committer.commit(committables)


def test_output_of_an_earlier_process_is_read_before_it_is_published(sink, committer, folder):
    committables = Task(sink).snapshot(1, ["abc"])
    path = staged(folder)[0]
    path.write_text("abd\n")
    with pytest.raises(JobError, match="another checksum than recorded") as caught:
        committer.commit(committables)
    assert caught.value.recoverability is Recoverability.NON_RECOVERABLE
    assert visible(folder) == []
    path.write_text("abc\n")
    committer.commit(committables)
    # Output of the running job is not read again, since it was written a moment ago.
    committer.clean("line", "sink", 1)
    committables = Task(sink).snapshot(2, ["abc"])
    staged(folder)[0].write_text("abd\n")
    committer.commit(committables)
    assert content(folder) == ["abc\n", "abd\n"]


def test_abandoned_output_is_removed(sink, committer, folder):
    committables = Task(sink).snapshot(1, ["a"])
    committer.abandon(committables)
    committer.abandon(committables)
    assert staged(folder) == []
    assert visible(folder) == []


def test_closing_throws_away_what_was_not_prepared(sink, folder):
    task = Task(sink)
    kept = task.snapshot(1, ["a"])
    task.writer.write(["b"])
    task.writer.close()
    task.writer.close()
    assert [path.name for path in staged(folder)] == [kept[0].payload["staged"]]


def test_cleaning_removes_only_what_older_attempts_left_and_no_snapshot_holds(
    sink, committer, folder
):
    held = Task(sink, attempt=1).snapshot(1, ["held"])
    Task(sink, attempt=2).snapshot(2, ["left over"])
    current = Task(sink, attempt=3).snapshot(2, ["current"])
    other = Task(sink, attempt=1, uid="other").snapshot(1, ["other"])
    keep = {held[0].payload["staged"]}
    assert committer.clean("line", "sink", 3, keep) == 1
    committer.commit([*held, *current, *other])
    assert sorted(content(folder)) == ["current\n", "held\n", "other\n"]


def test_a_folder_that_cannot_be_is_refused_before_the_start(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(GraphError, match="is a file"):
        FileSink(tmp_path / "file" / "out").validate()
    FileSink(tmp_path / "new" / "out").validate()
    assert not (tmp_path / "new").exists()
    with pytest.raises(GraphError, match="only the local file system"):
        FileSink("hdfs://x")
    with pytest.raises(GraphError, match="format"):
        FileSink(tmp_path, "json")


def test_a_full_disk_is_told_with_the_file(sink, monkeypatch):
    def full(descriptor):
        raise OSError(28, "No space left on device")

    task = Task(sink)
    task.writer.write(["a"])
    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(JobError, match=r"_staging/\S+ cannot be written: No space left"):
        task.snapshot(1)
    task.writer.close()


Point = namedtuple("Point", "x y")


@pytest.mark.parametrize(
    ("format", "records", "read_as"),
    [
        (TextLines(), ["é", "\u2028", "", "x\ry"], None),
        (TextLines(encoding="latin-1"), ["é"], None),
        (JsonLines(), [{"a": [1, None, "é\n"]}, "x", 2.5], None),
        (CsvRows(), [{"a": "1", "b": "x\ny"}, {"b": 'q"', "a": ""}], None),
        (CsvRows(), [{"a": "\r", "b": "x\r\n"}, {"b": "\n", "a": "x\ry"}], None),
        (CsvRows(["b", "a"]), [{"a": "1", "b": "2"}], None),
        (CsvRows(header=False), [("1", "2"), ["3", "4,5"]], [("1", "2"), ("3", "4,5")]),
        (CsvRows(["a", "b"], tuples=True), [("1", "2")], None),
        (CsvRows(), [Point(1, 2)], [{"x": "1", "y": "2"}]),
    ],
)
def test_what_is_written_can_be_read_back(folder, format, records, read_as):
    sink = FileSink(folder, format)
    sink.create_committer().commit(Task(sink).snapshot(1, records[:1], records[1:]))
    assert visible(folder)[0].suffix == format.extension
    source = FileSource(folder, format)
    enumerator = source.create_enumerator(1)
    enumerator.start()
    reader = source.create_reader(ReaderContext("uid", 0, 1))
    reader.open(enumerator.next_split(0), None)
    assert reader.read(100).records == (read_as or records)
    reader.close()


@pytest.mark.parametrize(
    ("format", "record", "words"),
    [
        (TextLines(), "two\nlines", "contains a line end"),
        (TextLines(encoding="latin-1"), "€", "cannot be encoded"),
        (TextLines(), "\ud800", "cannot be encoded"),
        (JsonLines(), {1, 2}, "not JSON serializable"),
        (CsvRows(), ("x",), "no field names"),
        (CsvRows(["a"]), {"b": 1}, "cannot be written as a CSV row: 'a'"),
        (CsvRows(["a"]), {"a": 1, "b": 2}, "it has 2 fields"),
        (CsvRows(["a"]), "x", "it is str, not a dict"),
        (CsvRows(["a"]), 3, "cannot be written as a CSV row"),
    ],
)
def test_a_record_that_does_not_fit_the_format_is_refused_and_shown(folder, format, record, words):
    task = Task(FileSink(folder, format))
    with pytest.raises(JobError, match=words) as caught:
        task.writer.write([record])
    assert caught.value.record
    task.writer.close()


def test_a_file_left_by_a_writer_of_the_same_attempt_is_not_overwritten(sink, committer, folder):
    before = Task(sink).snapshot(1, ["before"])
    after = Task(sink).snapshot(2, ["after"])
    committer.commit([*before, *after])
    assert content(folder) == ["before\n", "after\n"]


# ---- what a snapshot from somebody else may say


def with_payload(committable, **changes):
    return replace(committable, payload={**committable.payload, **changes})


@pytest.mark.parametrize(
    "changes",
    [
        {"staged": "{tmp}/evil", "target": "{tmp}/.profile"},
        {"staged": "../../../evil"},
        {"staged": "{folder}/_staging/../../../evil"},
        {"staged": "lock"},
        {"staged": "../part-0"},
        {"staged": "link"},
        {"staged": "1234567890-0001-00000-00000077"},
        {"staged": ""},
        {"staged": None},
        {"staged": "a\0b"},
        {"target": "{tmp}/part-1"},
        {"target": "../part-1"},
        {"target": ".profile"},
        {"target": "{folder}/.profile"},
        {"target": "way/part-1"},
        {"target": "_staging/part-1"},
        {"target": "deep/.hidden/part-1"},
        {"target": "part-\n\x1b[31m"},
        {"target": "part-1\x7f"},
        {"target": "part-1\u2028"},
        {"target": 7},
    ],
)
def test_names_that_lead_out_of_the_folder_are_refused(sink, committer, folder, tmp_path, changes):
    (held,) = Task(sink).snapshot(1, ["a"])
    for path in (tmp_path / "evil", folder / "_staging" / "lock", folder / "part-0"):
        path.write_text("mine")
    (folder / "_staging" / "1234567890-0001-00000-00000077").symlink_to(tmp_path / "evil")
    (folder / "way").symlink_to(tmp_path)
    places = {"tmp": tmp_path, "folder": folder}
    changes = {
        key: value.format(**places) if isinstance(value, str) else value
        for key, value in changes.items()
    }
    before = sorted(tmp_path.rglob("*"))
    for method in [committer.commit, *([committer.abandon] if "staged" in changes else [])]:
        with pytest.raises(JobError, match="snapshot 1 holds output named"):
            method([with_payload(held, **changes)])
    assert sorted(tmp_path.rglob("*")) == before


def test_a_staging_folder_that_is_a_link_is_refused(sink, committer, folder, tmp_path):
    committables = Task(sink).snapshot(1, ["a"])
    (folder / "_staging").rename(tmp_path / "elsewhere")
    (folder / "_staging").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(JobError, match="no staged file of"):
        committer.commit(committables)


def test_nothing_is_written_through_a_staging_folder_that_is_a_link(folder, tmp_path):
    (tmp_path / "elsewhere").mkdir()
    folder.mkdir(parents=True)
    (folder / "_staging").symlink_to(tmp_path / "elsewhere")
    sink = FileSink(folder)
    with pytest.raises(GraphError, match=f"_staging is a symbolic link to {tmp_path}/elsewhere"):
        sink.validate()
    with pytest.raises(JobError, match="Nothing was written") as caught:
        Task(sink).snapshot(1, ["a"])
    assert caught.value.recoverability is Recoverability.NON_RECOVERABLE
    name = f"{sink_tag('l', 'uid')}-0001-00000-00000000"
    (tmp_path / "elsewhere" / name).write_text("not mine")
    with pytest.raises(JobError, match="is a symbolic link"):
        sink.create_committer().clean("l", "uid", 99)
    assert [path.name for path in (tmp_path / "elsewhere").iterdir()] == [name]


def test_absolute_paths_of_version_0_1_are_taken_within_the_folder(folder, tmp_path):
    (tmp_path / "spelt").symlink_to(tmp_path)
    for number, root in enumerate([folder, tmp_path / "spelt" / "deep" / "out"], 1):
        (held,) = Task(FileSink(folder)).snapshot(number, ["a"])
        old = with_payload(
            held,
            staged=f"{root}/_staging/{held.payload['staged']}",
            target=f"{root}/{held.payload['target']}",
        )
        FileSink(folder).create_committer().commit([old])
        assert content(folder) == ["a\n"] * number
        assert staged(folder) == []


def test_a_folder_may_be_moved_with_what_is_staged_in_it(sink, folder, tmp_path):
    committables = Task(sink).snapshot(1, ["a"])
    folder.rename(tmp_path / "moved")
    FileSink(tmp_path / "moved").create_committer().commit(committables)
    assert content(tmp_path / "moved") == ["a\n"]


def test_output_that_was_staged_in_another_folder_is_an_error_that_names_it(sink, folder, tmp_path):
    committables = Task(sink).snapshot(1, ["a"])
    with pytest.raises(JobError, match=rf"is lost.*the sink wrote to {folder} then"):
        FileSink(tmp_path / "other").create_committer().commit(committables)
