"""The ids of a sink's messages ascend, are the same each time, and say what is published."""

import random

import pytest

from penstock.connectors.rabbitmq.publishing_ids import (
    PublishingId,
    TooManyError,
    numbered,
    small_hash,
)


def test_ids_say_which_record_of_which_snapshot_a_message_is():
    found = [PublishingId.unpack(id) for id, _ in numbered(7, "ab12", [b"x", b"y", b"z"])]
    hash = small_hash("ab12")
    assert found == [PublishingId(7, index, hash, index == 2) for index in range(3)]
    assert PublishingId.unpack(0) is None
    assert list(numbered(7, "ab12", [])) == []


def test_ids_ascend_whatever_the_hashes_are():
    rng = random.Random(1)
    ids = [
        id
        for number in (1, 2, 3, 1000, (1 << 30) - 1)
        for id, _ in numbered(number, f"{rng.random()}", [b""] * rng.randrange(1, 300))
    ]
    assert ids == sorted(set(ids)) and ids[0] > 0 and ids[-1] < 1 << 63


@pytest.mark.parametrize(("number", "index"), [(1 << 30, 0), (1, 1 << 26)])
def test_a_number_that_does_not_fit_is_refused(number: int, index: int):
    with pytest.raises(TooManyError, match="take snapshots more often"):
        PublishingId(number, index, 0, False).pack()


class Stream:
    """A stream leaves out messages whose id is not above the highest of their publisher."""

    def __init__(self) -> None:
        self.highest, self.contents = 0, []

    def publish(self, id: int, content: bytes) -> None:
        if id > self.highest:
            self.highest = id
            self.contents.append(content)


@pytest.mark.parametrize("seed", range(200))
def test_publishers_that_die_and_zombies_lose_and_double_nothing(seed: int):
    rng = random.Random(seed)
    stream, zombies = Stream(), []
    snapshots = [
        [b"%d/%d" % (number, index) for index in range(rng.randrange(1, 9))] for number in range(9)
    ]
    number = 1
    while number <= len(snapshots):
        found = PublishingId.unpack(stream.highest)
        if found is not None and found.last and found.number >= number:
            number += 1
            continue
        messages = iter(list(numbered(number, f"{number}", snapshots[number - 1])))
        for message in messages:
            stream.publish(*message)
            for zombie in zombies:
                for other in [next(zombie, None)] if rng.random() < 0.5 else []:
                    if other is not None:
                        stream.publish(*other)
            if rng.random() < 0.2:
                zombies.append(messages)  # it goes on later, beside its successors
                break
        else:
            number += 1
    for zombie in zombies:
        for message in zombie:
            stream.publish(*message)
    assert stream.contents == [content for contents in snapshots for content in contents]
