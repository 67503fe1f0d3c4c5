"""A queue on disk: order, segments that come and go, and the ranges that logs hold."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from penstock.dataflow.errors import ProtocolError
from penstock.runtime.network.spill_queue import Hold, SpillQueue
from penstock.snapshot.storage.filesystem.disk import FileSystem
from penstock.snapshot.storage.in_flight_log import BARRIER, BATCH, frames


def put(spill: SpillQueue, *payloads: str) -> None:
    for payload in payloads:
        spill.append(BATCH, payload.encode(), 1)


def got(spill: SpillQueue, most: int = 1 << 20) -> list[str]:
    return [payload.decode() for _, payload, _ in spill.read(most)]


def held(spill: SpillQueue, hold: Hold) -> list[str]:
    found = []
    for part in hold.ranges():
        data = part.segment.path.read_bytes()
        assert len(data) == part.segment.size
        for kind, payload in frames(data[part.start : part.end]):
            if kind == BATCH:
                found.append(bytes(payload).decode())
    return found


@pytest.mark.parametrize("segment_bytes", [1, 14, 1 << 20])
def test_frames_come_back_in_order_and_consumed_segments_go(
    tmp_path: Path, segment_bytes: int
) -> None:
    spill = SpillQueue(tmp_path / "q", segment_bytes)
    put(spill, *"abcde")
    assert (spill.frames, spill.records, spill.bytes) == (5, 5, 30)
    assert got(spill, 1) == ["a"]
    put(spill, "f")
    assert got(spill) == list("bcdef")
    assert (spill.frames, spill.records, spill.bytes) == (0, 0, 0)
    assert list((tmp_path / "q").iterdir()) == []
    put(spill, "g")
    assert got(spill) == ["g"]


def test_the_folder_is_made_when_it_is_needed_and_belongs_to_one_queue(tmp_path: Path) -> None:
    spill = SpillQueue(tmp_path / "q")
    assert not (tmp_path / "q").exists()
    (tmp_path / "q").mkdir()
    with pytest.raises(FileExistsError):
        put(spill, "a")


def test_a_hold_has_what_is_unread_and_what_comes_until_its_end(tmp_path: Path) -> None:
    spill = SpillQueue(tmp_path / "q", 14)
    put(spill, *"abcd")
    got(spill, 1)
    hold = spill.hold()
    put(spill, *"ef")
    with pytest.raises(ProtocolError, match="before its end"):
        hold.ranges()
    spill.end_hold(hold)
    put(spill, "g")
    assert hold.records == 5
    assert got(spill) == list("bcdefg")
    assert held(spill, hold) == list("bcdef")
    assert len(list((tmp_path / "q").iterdir())) == 2
    hold.release()
    assert list((tmp_path / "q").iterdir()) == []


def test_two_holds_share_segments_which_go_with_the_last(tmp_path: Path) -> None:
    spill = SpillQueue(tmp_path / "q", 1 << 20)
    put(spill, "a")
    one = spill.hold()
    put(spill, "b")
    two = spill.hold()
    put(spill, "c")
    spill.end_hold(one)
    put(spill, "d")
    spill.end_hold(two)
    assert got(spill) == list("abcd")
    one.release()
    assert held(spill, two) == list("abcd")
    two.release()
    assert list((tmp_path / "q").iterdir()) == []


@pytest.mark.parametrize("segment_bytes", [1, 14, 1 << 20])
@pytest.mark.parametrize(("ahead", "read"), [(a, r) for a in range(4) for r in range(a + 1)])
def test_a_hold_up_to_a_mark_ends_there_whatever_was_read_of_it(
    tmp_path: Path, segment_bytes: int, ahead: int, read: int
) -> None:
    spill = SpillQueue(tmp_path / "q", segment_bytes)
    put(spill, *"abc"[:ahead])
    mark = spill.mark()
    spill.append(BARRIER, b"1 checkpoint", 0)
    put(spill, *"xyz")
    for _ in range(read):
        got(spill, 1)
    hold = spill.hold(mark)
    assert hold.records == ahead - read
    assert held(spill, hold) == list("abc"[read:ahead])
    put(spill, "w")
    assert got(spill) == [*"abc"[read:ahead], "1 checkpoint", *"xyzw"]
    hold.release()
    assert list((tmp_path / "q").iterdir()) == []


def test_a_closed_segment_has_the_checksum_of_its_content(tmp_path: Path) -> None:
    spill = SpillQueue(tmp_path / "q")
    put(spill, *"ab")
    hold = spill.hold()
    spill.end_hold(hold)
    (part,) = hold.ranges()
    put(spill, "c")
    assert part.segment.checksum == FileSystem().checksum(part.segment.path)
    spill.close()


def test_any_sequence_keeps_order_and_holds_keep_their_ranges(tmp_path: Path) -> None:
    for seed in range(60):
        rng = random.Random(seed)
        folder = tmp_path / str(seed)
        spill = SpillQueue(folder, rng.choice([1, 20, 60, 1 << 20]))
        queue: list[str] = []
        open_holds: list[tuple[Hold, list[str]]] = []
        closed: list[tuple[Hold, list[str]]] = []
        for number in range(120):
            match rng.randrange(6):
                case 0 | 1 | 2:
                    put(spill, str(number))
                    queue.append(str(number))
                    for _, content in open_holds:
                        content.append(str(number))
                case 3:
                    taken = got(spill, rng.choice([1, 20, 100]))
                    assert taken == queue[: len(taken)], seed
                    del queue[: len(taken)]
                case 4 if len(open_holds) < 2:
                    open_holds.append((spill.hold(), list(queue)))
                case _:
                    if open_holds:
                        hold, content = open_holds.pop(0)
                        spill.end_hold(hold)
                        closed.append((hold, content))
                    elif closed:
                        hold, content = closed.pop(rng.randrange(len(closed)))
                        assert held(spill, hold) == content, seed
                        assert hold.records == len(content), seed
                        hold.release()
            assert spill.records == spill.frames == len(queue), seed
        for hold, content in [*open_holds, *closed]:
            if (hold, content) in open_holds:
                spill.end_hold(hold)
            assert held(spill, hold) == content, seed
            hold.release()
        assert got(spill) == queue, seed
        assert not folder.exists() or list(folder.iterdir()) == [], seed
        spill.close()
