"""Output is compared as multisets, sink by sink."""

import json
from dataclasses import asdict

from penstock.dataflow.sink import WriterContext
from penstock.runtime.shadow import comparison
from penstock.runtime.shadow.captured_sink import CapturedSink
from penstock.runtime.shadow.comparison import compare
from penstock.runtime.shadow.shadow_code import ShadowEndpoint
from penstock.runtime.shadow.sliced_source import SliceFiles


def run_of(folder, sinks, read=(), former=()):
    """Write the folder of a run: the batches of each subtask of each sink, and what was read."""
    folder.mkdir()
    former = dict(former)
    endpoints = [ShadowEndpoint("numbers", None, "Numbers")]
    for uid, subtasks in sinks.items():
        output = folder / "output" / uid
        endpoints.append(ShadowEndpoint(uid, former.get(uid), uid.title(), str(output)))
        for subtask, records in enumerate(subtasks):
            sink = CapturedSink(str(output))
            writer = sink.create_writer(WriterContext(uid, uid, subtask, len(subtasks), 1, "x"))
            writer.open()
            writer.write(records)
            writer.close()
    (folder / "endpoints").write_text(json.dumps([asdict(one) for one in endpoints]))
    for count in read:
        SliceFiles(folder).add({"uid": "numbers", "split": "s", "records": count})
    return folder


def test_order_and_subtasks_make_no_difference(tmp_path):
    old = run_of(tmp_path / "old", {"out": [[1, 2, 2], [3]]}, [4])
    new = run_of(tmp_path / "new", {"out": [[3, 2, 1, 2]]}, [1, 3])
    (source,), (sink,) = compare(old, new)
    assert (source.old, source.new) == (4, 4)
    assert sink.equal and (sink.old, sink.new) == (4, 4)


def test_differences_are_counted_with_their_first_records(tmp_path, monkeypatch):
    old = run_of(tmp_path / "old", {"out": [[1, 2, 2, 2, *range(100, 120)]]})
    new = run_of(tmp_path / "new", {"out": [[2, 4, 4]]})
    for size in (comparison.PART_BYTES, 10):  # at once, and in parts
        monkeypatch.setattr(comparison, "PART_BYTES", size)
        _, (sink,) = compare(old, new)
        assert (sink.old, sink.new, sink.only_old, sink.only_new) == (24, 3, 23, 2)
        assert not sink.equal and len(sink.first_old) == 5 and sink.first_new == ["4", "4"]
        if size > 10:
            assert sink.first_old == ["1", "2", "2", "100", "101"]


def test_sinks_that_one_program_lacks_are_differences(tmp_path):
    old = run_of(tmp_path / "old", {"out": [[1]], "gone": [[5]], "before": [[6]], "empty": [[]]})
    new = run_of(
        tmp_path / "new", {"out": [[1]], "added": [[7]], "after": [[6]]}, former={"after": "before"}
    )
    _, sinks = compare(old, new)
    found = {sink.uid: (sink.old, sink.new, sink.equal) for sink in sinks}
    assert found == {
        "out": (1, 1, True),
        "after": (1, 1, True),
        "added": (None, 1, False),
        "gone": (1, None, False),
        "empty": (0, None, False),
    }
