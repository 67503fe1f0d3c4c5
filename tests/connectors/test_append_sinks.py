"""`PrintSink` and `FunctionSink`: what they call, with what, and how failures are told."""

import sys

import pytest

from penstock.connectors import FunctionSink, PrintSink
from penstock.dataflow.errors import GraphError
from penstock.dataflow.sink import WriterContext


def context(subtask=0, parallelism=1):
    return WriterContext("uid", "name", subtask, parallelism, 1, "line")


@pytest.mark.parametrize(
    ("prefix", "parallelism", "line"),
    [(None, 1, "x"), (None, 2, "2> x"), ("p", 1, "p> x"), ("p", 2, "p:2> x")],
)
def test_lines_are_prefixed_as_flink_does(capsys, prefix, parallelism, line):
    writer = PrintSink(prefix).create_writer(context(parallelism - 1, parallelism))
    writer.write(["x", "x"])
    writer.write([])
    writer.flush()
    assert capsys.readouterr().out == f"{line}\n" * 2


def test_a_batch_is_one_write(monkeypatch, capsys):
    calls = []
    monkeypatch.setattr(sys.stderr, "write", calls.append)
    writer = PrintSink(stderr=True).create_writer(context())
    writer.write([1, 2, 3])
    writer.close()
    assert calls == ["1\n2\n3\n"]


def test_a_function_is_called_with_each_record_in_order():
    seen = []
    writer = FunctionSink(seen.append).create_writer(context())
    writer.write([1, 2])
    writer.write([3])
    writer.close()
    assert seen == [1, 2, 3]
    assert writer.per_record is not None
    writer.per_record(4)
    assert seen == [1, 2, 3, 4]


def test_an_object_is_opened_invoked_and_closed():
    class Recorder:
        def __init__(self):
            self.seen = []

        def open(self, context):
            self.seen.append(context.subtask)
            assert context.get_index_of_this_subtask() == 3
            assert context.get_number_of_parallel_subtasks() == 4
            assert context.get_task_name() == "name"

        def invoke(self, record):
            self.seen.append(record)

        def close(self):
            self.seen.append("closed")

    recorder = Recorder()
    writer = FunctionSink(recorder).create_writer(context(3, 4))
    writer.open()
    writer.write(["a"])
    writer.close()
    assert recorder.seen == [3, "a", "closed"]


def test_they_are_at_least_once_and_have_no_committer():
    for sink in (PrintSink(), FunctionSink(print)):
        assert not sink.exactly_once
        assert sink.create_committer() is None


def test_what_cannot_be_called_is_refused():
    with pytest.raises(GraphError, match="invoke"):
        FunctionSink([])
