"""Logs of back-edges: written and read back, damaged, large, and redistributed."""

from __future__ import annotations

import errno
import json
import tracemalloc
from collections import Counter
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.cli import main
from penstock.dataflow.errors import JobError, ProtocolError, StoreError
from penstock.dataflow.graph.job_graph import Partitioning
from penstock.dataflow.graph.key_groups import key_group, key_group_range
from penstock.dataflow.graph.keys import canonical
from penstock.runtime.network.spill_queue import SpillQueue
from penstock.snapshot.coordination.log_redistribution import redistribute_log
from penstock.snapshot.metadata.handles import LogHandle, SnapshotBytes
from penstock.snapshot.storage.filesystem.disk import FileSystem
from penstock.snapshot.storage.filesystem.memory import MemoryFileSystem
from penstock.snapshot.storage.in_flight_log import (
    BARRIER,
    BATCH,
    END,
    FRAME_HEADER,
    SEGMENT_BYTES,
    LogPart,
    Range,
    Segment,
    frame,
    frames,
    read_log,
    write_log,
)


def drive(steps: Generator[Callable[[], Any] | None, Any, Any]) -> Any:
    """Run a generator of slow work to its end."""
    answer = None
    while True:
        try:
            step = steps.send(answer)
        except StopIteration as stop:
            return stop.value
        answer = None if step is None else step()


def write(
    parts: list[LogPart], folder: Path, threshold: int = 0, files: FileSystem | None = None
) -> tuple[LogHandle, SnapshotBytes]:
    result: tuple[LogHandle, SnapshotBytes] = drive(
        write_log(
            parts,
            producer="score",
            input=1,
            source=2,
            partitioning="hash",
            records=7,
            folder=folder,
            inline_threshold=threshold,
            files=files,
        )
    )
    return result


def read(handle: LogHandle, snapshot: Path, files: FileSystem | None = None) -> list[bytes]:
    return [bytes(payload) for payload in read_log(handle, snapshot, files)]


def segment(path: Path, *contents: tuple[int, bytes]) -> Segment:
    data = b"".join(frame(kind, payload) for kind, payload in contents)
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(data)
    return Segment(path, len(data), FileSystem().checksum(path))


def whole(segment: Segment) -> Range:
    return Range(segment, 0, segment.size)


@pytest.fixture
def snapshot(tmp_path: Path) -> Path:
    folder = tmp_path / "000012"
    folder.mkdir()
    return folder


# ---- frames


def test_a_frame_is_length_kind_and_payload() -> None:
    assert frame(BATCH, b"abc") == b"\x00\x00\x00\x03\x00abc"
    assert frame(BARRIER, b"") == b"\x00\x00\x00\x00\x01"
    contents = [(BATCH, b"abc"), (BARRIER, b"12 checkpoint"), (BATCH, b""), (END, b"")]
    data = b"".join(frame(*content) for content in contents)
    assert [(kind, bytes(payload)) for kind, payload in frames(data)] == contents


def test_frames_that_are_cut_off_anywhere_are_found() -> None:
    data = frame(BATCH, b"first") + frame(BATCH, b"second")
    boundary = len(frame(BATCH, b"first"))
    for length in set(range(1, len(data))) - {boundary}:
        with pytest.raises(
            StoreError,
            match=r"log of records in flight is damaged: .*another snapshot \[the/file\]",
        ) as caught:
            list(frames(data[:length], "the/file"))
        assert caught.value.path == "the/file"


def test_a_frame_of_a_kind_that_there_is_not_is_found() -> None:
    with pytest.raises(StoreError, match="the frame at byte 5 is of kind 9"):
        list(frames(frame(END, b"") + frame(9, b"x"), "f"))


# ---- writing and reading


def test_a_small_log_in_memory_travels_in_the_handle(snapshot: Path) -> None:
    parts: list[LogPart] = [b"one", b"", b"three"]
    size = sum(FRAME_HEADER.size + len(part) for part in parts)
    handle, written = write(parts, snapshot / "log", threshold=size)
    assert handle.inline == b"".join(frame(BATCH, part) for part in (b"one", b"", b"three"))
    assert (handle.files, handle.pieces) == ((), ())
    assert (handle.producer, handle.input, handle.source) == ("score", 1, 2)
    assert (handle.partitioning, handle.records, handle.size) == ("hash", 7, size)
    assert written == SnapshotBytes(new=size)
    assert list(snapshot.iterdir()) == []
    assert read(handle, snapshot) == parts


def test_a_larger_one_is_written_to_files_of_the_snapshot(snapshot: Path) -> None:
    parts: list[LogPart] = [b"one", b"two"]
    handle, written = write(parts, snapshot / "log", threshold=15)
    assert handle.inline is None
    assert [file.name for file in handle.files] == ["log/000000"]
    assert written == SnapshotBytes(new=16) and handle.size == 16
    assert read(handle, snapshot) == parts


def test_what_was_spilled_is_linked_and_not_written_again(tmp_path: Path, snapshot: Path) -> None:
    spilled = segment(tmp_path / "spill" / "0", (BATCH, b"a"), (BARRIER, b"11"), (BATCH, b"b"))
    handle, written = write([b"first", whole(spilled), b"last"], snapshot / "log", threshold=1000)
    assert read(handle, snapshot) == [b"first", b"a", b"b", b"last"]
    assert spilled.path.samefile(snapshot / "log" / "000001")
    assert written == SnapshotBytes(new=spilled.size + 10 + 9)
    # The segment is in a snapshot already: the next one only links it.
    again, written = write([whole(spilled)], snapshot / "log2")
    assert written == SnapshotBytes(new=0, linked=spilled.size)
    spilled.path.unlink()
    assert read(again, snapshot) == [b"a", b"b"]


def test_a_part_of_a_segment_is_read_and_no_more(tmp_path: Path, snapshot: Path) -> None:
    spilled = segment(tmp_path / "spill" / "0", *((BATCH, b"%d" % i) for i in range(5)))
    step = FRAME_HEADER.size + 1
    parts: list[LogPart] = [Range(spilled, step, 3 * step), Range(spilled, 4 * step, 5 * step)]
    handle, written = write(parts, snapshot / "log")
    assert read(handle, snapshot) == [b"1", b"2", b"4"]
    assert handle.size == 3 * step
    assert len(handle.files) == 1 and written.total == spilled.size


def test_a_segment_that_cannot_be_linked_is_copied(
    tmp_path: Path, snapshot: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(self: FileSystem, source: Path, target: Path) -> None:
        raise OSError(errno.EXDEV, "another file system", str(source))

    monkeypatch.setattr(FileSystem, "link", refuse)
    spilled = segment(tmp_path / "spill" / "0", (BATCH, b"a"))
    handle, written = write([whole(spilled)], snapshot / "log")
    assert written == SnapshotBytes(new=spilled.size)
    spilled.path.write_bytes(b"")
    assert read(handle, snapshot) == [b"a"]


def test_a_segment_that_has_changed_is_not_taken(tmp_path: Path, snapshot: Path) -> None:
    spilled = segment(tmp_path / "spill" / "0", (BATCH, b"a"))
    spilled.path.write_bytes(b"")
    with pytest.raises(StoreError, match=r"has 0 bytes instead of 6.*spill/0"):
        write([whole(spilled)], snapshot / "log")


def test_a_log_that_cannot_be_written_says_why(tmp_path: Path, snapshot: Path) -> None:
    with pytest.raises(StoreError, match=r"cannot write the records in flight: .*000012/no/log\]"):
        write([b"a"], snapshot / "no" / "log")
    gone = Segment(tmp_path / "gone", 1, "")
    with pytest.raises(StoreError, match="cannot write the records in flight"):
        write([whole(gone)], snapshot / "log")


def test_a_log_whose_file_is_gone_or_short_names_it(snapshot: Path) -> None:
    handle, _ = write([b"one"], snapshot / "log")
    path = snapshot / "log" / "000000"
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(StoreError, match="has 7 bytes, and is needed up to byte 8") as caught:
        read(handle, snapshot)
    assert caught.value.path == str(path)
    path.unlink()
    with pytest.raises(StoreError, match="cannot read the records in flight") as caught:
        read(handle, snapshot)
    assert caught.value.path == str(path)


def test_a_queue_that_was_spilled_is_a_log_as_it_is(tmp_path: Path, snapshot: Path) -> None:
    spill = SpillQueue(tmp_path / "spill", segment_bytes=40)
    for i in range(10):
        spill.append(BATCH, b"batch %d" % i, 1)
    assert len(spill.read(30)) == 3
    hold = spill.hold()
    spill.append(BARRIER, b"11 checkpoint", 0)
    spill.append(BATCH, b"batch 10", 1)
    spill.end_hold(hold)
    spill.append(BATCH, b"too late", 1)
    ranges = hold.ranges()
    assert len(ranges) > 2
    handle, _ = write([*ranges], snapshot / "log")
    hold.release()
    spill.read(1 << 20)
    assert read(handle, snapshot) == [b"batch %d" % i for i in range(3, 11)]
    spill.close()


frame_contents = st.tuples(st.sampled_from([BATCH, BATCH, BARRIER, END]), st.binary(max_size=20))
segment_contents = st.tuples(
    st.lists(frame_contents, min_size=1, max_size=6), st.integers(0, 5), st.integers(1, 6)
)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.binary(max_size=30) | segment_contents, min_size=1, max_size=8),
    st.sampled_from([0, 40, 1 << 20]),
)
def test_any_log_comes_back_as_it_was(
    tmp_path_factory: pytest.TempPathFactory, contents: list[Any], threshold: int
) -> None:
    root = tmp_path_factory.mktemp("job")
    (snapshot := root / "000001").mkdir()
    parts: list[LogPart] = []
    expected: list[bytes] = []
    for number, content in enumerate(contents):
        if isinstance(content, bytes):
            parts.append(content)
            expected.append(content)
            continue
        inside, first, count = content
        chosen = slice(first, first + count)
        offsets = [0]
        for kind, payload in inside:
            offsets.append(offsets[-1] + len(frame(kind, payload)))
        closed = segment(root / "spill" / str(number), *inside)
        start, end = offsets[: len(inside)][first : first + 1], offsets[1:][chosen][-1:]
        if start:
            parts.append(Range(closed, start[0], end[0]))
            expected += [payload for kind, payload in inside[chosen] if kind == BATCH]
    handle, written = write(parts, snapshot / "log", threshold)
    assert LogHandle.from_wire(handle.to_wire()) == handle
    assert read(handle, snapshot) == expected
    sizes = [part.end - part.start if isinstance(part, Range) else 5 + len(part) for part in parts]
    assert handle.size == sum(sizes)
    if handle.inline is None:
        assert written.total == sum(file.size for file in handle.files)
        for file in handle.files:
            path = snapshot / file.name
            assert (path.stat().st_size, FileSystem().checksum(path)) == (file.size, file.checksum)
    else:
        assert len(handle.inline) == handle.size == written.new <= threshold


def test_a_log_much_larger_than_memory_may_be_is_written_and_read(snapshot: Path) -> None:
    batch = bytes(64 * 1024)
    count = 12 * SEGMENT_BYTES // len(batch)
    parts: list[LogPart] = [batch] * count
    tracemalloc.start()
    handle, _ = write(parts, snapshot / "log")
    _, written_peak = tracemalloc.get_traced_memory()
    tracemalloc.reset_peak()
    assert sum(1 for _ in read_log(handle, snapshot)) == count
    _, read_peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(handle.files) == 12
    assert max(file.size for file in handle.files) < SEGMENT_BYTES + 2 * len(batch)
    assert written_peak < 3 * SEGMENT_BYTES
    assert read_peak < 3 * SEGMENT_BYTES


def test_a_log_that_was_told_to_be_written_outlives_a_crash() -> None:
    # The store's tests crash at every step; this one only says who syncs what.
    for keep in (0.0, 0.5):
        files = MemoryFileSystem(seed=1)
        for name in ("/jobs", "/jobs/000001", "/spill"):
            files.make_folder(Path(name))
        data = frame(BATCH, b"spilled")
        files.write(Path("/spill/0"), data)
        closed = Segment(Path("/spill/0"), len(data), files.checksum(Path("/spill/0")))
        folder = Path("/jobs/000001/log")
        handle, _ = write([b"first", whole(closed), b"last"], folder, files=files)
        for path in (Path("/"), Path("/jobs"), Path("/jobs/000001")):
            files.sync(path)
        files.crash(keep)
        assert read(handle, folder.parent, files) == [b"first", b"spilled", b"last"]


def test_people_are_told_what_was_in_flight_and_where_it_lies() -> None:
    golden = Path(__file__).parents[2] / "golden" / "format-2"
    shown = CliRunner().invoke(main, ["snapshots", "show", str(golden)])
    assert shown.exit_code == 0, shown.output
    (row,) = [line for line in shown.output.splitlines() if line.startswith("count ")]
    assert "8 records" in row
    found = CliRunner().invoke(main, ["snapshots", "show", str(golden), "--json", "--verify"])
    counted = json.loads(found.output)["operators"][2]
    assert (counted["log_records"], counted["log_bytes"]) == (8, 89)
    assert (counted["inline_bytes"], counted["files"], counted["file_bytes"]) == (11, 4, 137)


# ---- dealing


def batches_of(records: list[int], size: int) -> Iterator[list[int]]:
    for start in range(0, len(records), size):
        yield records[start : start + size]


def shares(
    partitioning: Partitioning, records: list[int], size: int, parallelism: int
) -> list[list[int]]:
    found = []
    for subtask in range(parallelism):
        take = redistribute_log(
            partitioning,
            subtask=subtask,
            parallelism=parallelism,
            max_parallelism=128,
            selector=lambda record: record % 50,
            partition=lambda key, count: key // 7 % count,
        )
        found.append([batch[i] for batch in batches_of(records, size) for i in take(batch)])
    return found


DEALT = [each for each in Partitioning if each is not Partitioning.BROADCAST]


@settings(max_examples=50, deadline=None)
@given(st.sampled_from(DEALT), st.lists(st.integers()), st.integers(1, 9), st.integers(1, 7))
def test_the_shares_of_all_subtasks_are_the_log_and_each_keeps_its_order(
    partitioning: Partitioning, records: list[int], size: int, parallelism: int
) -> None:
    places = list(enumerate(records))
    take = [
        redistribute_log(
            partitioning,
            subtask=subtask,
            parallelism=parallelism,
            max_parallelism=128,
            selector=lambda pair: pair[1],
            partition=lambda key, count: key % count,
        )
        for subtask in range(parallelism)
    ]
    found: list[list[tuple[int, int]]] = [[] for _ in take]
    for start in range(0, len(places), size):
        for share, function in zip(found, take, strict=True):
            batch = places[start : start + size]
            share += [batch[i] for i in function(batch)]
    assert Counter(pair for share in found for pair in share) == Counter(places)
    assert all(share == sorted(share) for share in found)


def test_a_keyed_record_comes_to_the_subtask_that_has_its_key_group() -> None:
    found = shares(Partitioning.HASH, list(range(300)), 7, 3)
    for subtask, share in enumerate(found):
        assert share
        groups = key_group_range(subtask, 128, 3)
        assert all(key_group(canonical(record % 50), 128) in groups for record in share)


def test_a_custom_partitioner_is_asked_again() -> None:
    found = shares(Partitioning.CUSTOM, list(range(50)), 8, 3)
    assert found == [[r for r in range(50) if r // 7 % 3 == subtask] for subtask in range(3)]


def test_a_partitioner_that_names_no_subtask_is_an_error_and_no_loss() -> None:
    take = redistribute_log(
        Partitioning.CUSTOM,
        subtask=0,
        parallelism=2,
        max_parallelism=128,
        selector=lambda record: record,
        partition=lambda key, count: key,
    )
    assert take([0, 1, 0]) == [0, 2]
    with pytest.raises(JobError, match=r"returned 5; .*from 0 to 1(?s:.)*record:   5"):
        take([5])


@pytest.mark.parametrize(
    "partitioning",
    [
        Partitioning.REBALANCE,
        Partitioning.RESCALE,
        Partitioning.SHUFFLE,
        Partitioning.FORWARD,
    ],
)
def test_what_may_go_anywhere_goes_round(partitioning: Partitioning) -> None:
    found = shares(partitioning, list(range(10)), 4, 3)
    assert found == [[0, 3, 6, 9], [1, 4, 7], [2, 5, 8]]


def test_a_global_edge_leads_to_the_first_subtask() -> None:
    assert shares(Partitioning.GLOBAL, [1, 2, 3], 2, 2) == [[1, 2, 3], []]


def test_what_cannot_be_dealt_is_refused() -> None:
    for partitioning in (Partitioning.BROADCAST, Partitioning.HASH, Partitioning.CUSTOM):
        with pytest.raises(ProtocolError, match=partitioning.value):
            redistribute_log(partitioning, subtask=0, parallelism=2, max_parallelism=128)
