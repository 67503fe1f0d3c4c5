"""What is lost behind a position is found, against a model of a stream that is trimmed."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import pytest

from penstock.connectors.redis.offsets import RedisOffsets, format_id, id_before, parse_id
from penstock.connectors.redis.stream_position import StreamInfo, StreamPosition, what_is_lost
from penstock.dataflow.errors import GraphError


@dataclass
class Stream:
    """A stream as Redis keeps it."""

    entries: list[int] = field(default_factory=list)
    added: int = 0
    last: int = 0
    deleted: int = 0

    def add(self) -> None:
        self.last += 1
        self.added += 1
        self.entries.append(self.last)

    def info(self) -> StreamInfo:
        first = f"{self.entries[0]}-0" if self.entries else None
        last, deleted = f"{self.last}-0", f"{self.deleted}-0"
        return StreamInfo(len(self.entries), self.added, first, last, deleted)


@pytest.mark.parametrize("seed", range(200))
def test_a_trimmed_entry_that_was_not_read_is_noticed_and_nothing_else(seed: int):
    rng, stream = random.Random(seed), Stream()
    for _ in range(rng.randrange(5)):
        stream.add()
    position, lost = stream.info().position_at("0-0"), set[int]()
    for _ in range(60):
        action = rng.choice(["add", "add", "trim", "read", "read"])
        if action == "add":
            stream.add()
        elif action == "trim" and stream.entries:
            cut = rng.randrange(len(stream.entries) + 1)
            at = parse_id(position.id)[0]
            lost |= {entry for entry in stream.entries[:cut] if entry > at}
            del stream.entries[:cut]
        elif action == "read":
            found = what_is_lost(position, stream.info())
            assert (found is not None) == bool(lost), f"seed {seed}: {found}"
            if lost:
                assert found is not None and found.startswith(f"{len(lost)} entries"), found
                return
            for entry in stream.entries:
                if entry > parse_id(position.id)[0]:
                    position = StreamPosition(f"{entry}-0", (position.number or 0) + 1, True)
                    break


def test_a_position_of_unknown_number_whose_entry_is_gone_counts_as_lost():
    info = StreamInfo(3, 10, "8-0", "10-0", "0-0")
    assert "may be trimmed" in str(what_is_lost(StreamPosition("5-0", None, True), info))
    assert what_is_lost(StreamPosition("8-0", None, True), info) is None
    assert what_is_lost(StreamPosition("10-0", None, True), info) is None


@pytest.mark.parametrize(
    ("info", "said"),
    [
        (None, "does not exist any more"),
        (StreamInfo(2, 5, "1-0", "2-0", "0-0"), "ends with the id 2-0"),
        (StreamInfo(2, 2, "50-0", "60-0", "0-0"), "has only had 2"),
        (StreamInfo(8, 8, "50-0", "60-0", "0-0"), "are others than before"),
    ],
)
def test_a_server_that_lost_its_data_is_noticed(info: StreamInfo | None, said: str):
    assert said in str(what_is_lost(StreamPosition("5-0", 5, True), info))


def test_an_entry_that_vanished_between_others_is_noticed_and_a_deleted_one_is_fine():
    at = StreamPosition("5-0", 5, True)
    assert "older ones do" in str(
        what_is_lost(at, StreamInfo(6, 7, "1-0", "7-0", "0-0"), present=False)
    )
    assert what_is_lost(at, StreamInfo(6, 7, "1-0", "7-0", "5-0"), present=False) is None


def test_deleted_entries_make_the_number_of_the_first_one_unknown():
    assert StreamInfo(3, 5, "1-0", "5-0", "3-0").before_first is None
    assert StreamInfo(3, 5, "3-0", "5-0", "2-0").before_first == 2
    assert StreamInfo(0, 5, None, "5-0", "5-0").before_first == 5


def test_ids_are_numbers_and_not_text():
    assert parse_id("9-10") > parse_id("9-9") > parse_id("9") == (9, 0)
    assert format_id(parse_id("7")) == "7-0"
    assert id_before(0) == "0-0" and id_before(5) == f"4-{2**64 - 1}"
    for wrong in ("", "a-1", "5-", "-5", f"{2**64}-0"):
        with pytest.raises(GraphError, match="has the form"):
            RedisOffsets.ids(wrong)
