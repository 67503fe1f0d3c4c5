"""An edge is looked at through the first records of some batches, which it does not change."""

import pyarrow as pa
import pytest

from penstock.runtime.network.output_channel import LocalOutputChannel
from penstock.runtime.serialization.arrow_batch import ArrowBatch
from penstock.runtime.serialization.record_batch import RecordBatch
from penstock.runtime.task.edge_watch import MAX_CHARACTERS, EdgeWatch, shown


class Receiver:
    """The receiving end of a channel that takes everything."""

    desired_records = 100
    room = 1

    def __init__(self):
        self.received = []

    def put(self, element):
        self.received.append(element)


class Sending(LocalOutputChannel):
    def send(self, batch):
        self.channel.put(batch)


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


class Failing:
    def __init__(self, error):
        self.error = error

    def __repr__(self):
        raise self.error


@pytest.fixture
def channel():
    return Sending(Receiver(), 100)


def send(channel, batch):
    channel.sealed.append(batch)
    assert channel.push()


def test_the_first_record_of_a_batch_is_taken_now_and_then(channel):
    clock = Clock()
    watch = EdgeWatch([channel], 3, 0.1, clock, lambda: int(clock.now * 1000))
    for number in range(10):
        send(channel, RecordBatch([number, "not the first"]))
        clock.now += 0.05
    assert watch.seen == 20
    assert watch.records == [[0, "0"], [100, "2"], [200, "4"]]
    watch.close()
    send(channel, RecordBatch([99]))
    assert watch.seen == 20
    assert len(channel.channel.received) == 11


def test_two_clients_look_at_the_same_edge(channel):
    first, second = (EdgeWatch([channel], 5, 0.0, Clock(), lambda: 0) for _ in range(2))
    send(channel, RecordBatch(["a"]))
    first.close()
    send(channel, RecordBatch(["b"]))
    assert [text for _, text in first.records] == ["'a'"]
    assert [text for _, text in second.records] == ["'a'", "'b'"]


def test_rows_of_arrow_batches_are_shown(channel):
    watch = EdgeWatch([channel], 5, 0.0, Clock(), lambda: 0)
    send(channel, ArrowBatch(pa.RecordBatch.from_pylist([{"n": 1}, {"n": 2}])))
    assert watch.records == [[0, "{'n': 1}"]] and watch.seen == 2


@pytest.mark.parametrize("error", [ValueError("no"), SystemExit(1), RecursionError()])
def test_a_repr_that_raises_does_not_hurt_the_task(channel, error):
    watch = EdgeWatch([channel], 5, 0.0, Clock(), lambda: 0)
    send(channel, RecordBatch([Failing(error)]))
    ((_, text),) = watch.records
    assert text.startswith("<Failing")
    assert len(channel.channel.received) == 1


def test_a_text_that_cannot_be_encoded_is_escaped():
    class Half:
        def __repr__(self):
            return "\ud800"

    assert shown(Half()) == "\\ud800"


def test_the_text_of_a_large_record_is_bounded():
    assert len(shown("x" * 10_000)) <= MAX_CHARACTERS
    assert len(shown(list(range(10_000_000)))) <= MAX_CHARACTERS
    assert len(shown([["x" * 500] * 40] * 40)) <= MAX_CHARACTERS
    assert shown(("user", 1, {"a": [1.5]})) == "('user', 1, {'a': [1.5]})"
