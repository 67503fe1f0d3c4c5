"""Logs of steps reach all workers downstream before the records that depend on them."""

from __future__ import annotations

import pytest

from penstock.dataflow.errors import ProtocolError
from penstock.runtime.network import step_logs
from penstock.runtime.network.elements import Barrier, Element
from penstock.runtime.network.step_logs import (
    BARRIER,
    RESULTS,
    TAKEN,
    LoggingSender,
    Step,
    StepLogs,
)

K, D = (1, 0), (2, 0)


def step(number: int) -> Step:
    return [TAKEN, 0, 0, number, 1_000 + number]


class Wire:
    """A sender that keeps what is sent, and passes steps to the logs of the receiver."""

    def __init__(self, receiver: StepLogs) -> None:
        self.receiver = receiver
        self.sent: list[object] = []
        self.credits, self.takes_partial, self.desired_records = 7, True, 64

    def report_desired_records(self, listener: object) -> None:
        self.sent.append(listener)

    def send_batch(self, payload: bytes, count: int) -> None:
        self.sent.append(count)

    def send_marker(self, element: Element) -> None:
        self.sent.append(element)

    def send_steps(self, data: bytes) -> None:
        self.sent.append("steps")
        self.receiver.learn(data)


def known(logs: StepLogs, task: tuple[int, int]) -> list[Step]:
    return logs.of(task).after(0)[1]


def chain(count: int, snapshot: int = 0) -> tuple[list[StepLogs], list[Wire], list[LoggingSender]]:
    """Return the logs of some workers in a row, and what sends from each to the next one."""
    logs = [StepLogs(snapshot) for _ in range(count)]
    wires = [Wire(receiver) for receiver in logs[1:]]
    senders = [LoggingSender(wire, sender) for wire, sender in zip(wires, logs, strict=False)]
    return logs, wires, senders


def test_new_steps_go_ahead_of_batches_and_markers_and_are_sent_once():
    (one, two), (wire,), (sender,) = chain(2)
    one.of(K).append(step(1))
    sender.send_batch(b"", 3)
    sender.send_batch(b"", 4)
    one.of(K).append(step(2))
    sender.send_marker(Barrier(1))
    assert wire.sent == ["steps", 3, 4, "steps", Barrier(1)]
    assert known(two, K) == [step(1), step(2)]
    assert (sender.credits, sender.takes_partial, sender.desired_records) == (7, True, 64)


def test_steps_go_on_to_all_workers_downstream():
    (one, two, three), _, (first, second) = chain(3)
    one.of(K).append(step(1))
    first.send_batch(b"", 1)
    two.of(D).append(step(9))
    second.send_batch(b"", 1)
    assert (known(three, K), known(three, D)) == ([step(1)], [step(9)])


def test_steps_that_come_on_two_ways_are_known_once():
    last = StepLogs(0)
    ways = [StepLogs(0) for _ in range(2)]
    senders = [LoggingSender(Wire(last), way) for way in ways]
    source = StepLogs(0)
    to_ways = [LoggingSender(Wire(way), source) for way in ways]
    for number in range(4):
        source.of(K).append(step(number))
        to_ways[number % 2].send_batch(b"", 1)
        senders[number % 2].send_batch(b"", 1)
    assert known(last, K) == [step(number) for number in range(4)]


def test_many_bytes_of_steps_are_sent_in_parts(monkeypatch):
    monkeypatch.setattr(step_logs, "PART_BYTES", 1_000)
    (one, two), (wire,), (sender,) = chain(2)
    steps = [[RESULTS, [0], bytes([number]) * 600, 1_000] for number in range(5)]
    for number in range(5):
        one.of(K).append(steps[number])
        one.of(D).append(step(number))
    sender.send_batch(b"", 1)
    sender.send_batch(b"", 1)
    assert wire.sent == ["steps", "steps", "steps", 1, 1]
    assert known(two, K) == steps and known(two, D) == [step(number) for number in range(5)]


def test_complete_snapshots_shorten_logs_everywhere():
    (one, two), _, (sender,) = chain(2)
    for entry in (step(1), [BARRIER, 6], step(2), [BARRIER, 7], step(3)):
        one.of(K).append(entry)
    sender.send_marker(Barrier(7))
    for logs in (one, two):
        logs.snapshot_completed(6)
        logs.snapshot_completed(5)  # which the task did not take
        assert known(logs, K) == [step(2), [BARRIER, 7], step(3)]
    one.of(K).append(step(4))
    sender.send_batch(b"", 1)
    assert known(two, K) == [step(2), [BARRIER, 7], step(3), step(4)]


def test_a_restart_returns_the_steps_behind_the_barrier():
    (_, two), _, (sender,) = (parts := chain(2))
    one = parts[0][0]
    for entry in (step(1), [BARRIER, 6], step(2), [BARRIER, 7], step(3)):
        one.of(K).append(entry)
    sender.send_batch(b"", 1)
    assert two.restart([K, D], 6) == [[*K, 2, [step(2), [BARRIER, 7], step(3)]]]
    # The new attempt begins with the same steps, so only the next one is new.
    again = StepLogs(6)
    for entry in (step(2), [BARRIER, 7], step(3), step(4)):
        again.of(K, 2).append(entry)
    LoggingSender(Wire(two), again).send_batch(b"", 1)
    assert known(two, K) == [step(2), [BARRIER, 7], step(3), step(4)]


def test_a_worker_passes_the_steps_of_a_new_attempt_on():
    (one, two, three), _, (first, second) = chain(3)
    one.of(K).append(step(1))
    first.send_batch(b"", 1)
    second.send_batch(b"", 1)
    for logs in (two, three):
        logs.restart([K], 0)
    again = StepLogs(0)
    again.of(K).append(step(1))
    again.of(K).append(step(2))
    LoggingSender(Wire(two), again).send_batch(b"", 1)
    second.send_batch(b"", 1)
    assert known(three, K) == [step(1), step(2)]


def test_a_log_that_begins_behind_a_later_snapshot_is_known_from_there():
    again, receiver = StepLogs(6), StepLogs(0)
    again.of(K).append(step(1))
    LoggingSender(Wire(receiver), again).send_batch(b"", 1)
    assert receiver.restart([K], 6) == [[*K, 0, [step(1)]]]


def test_a_restart_from_an_unknown_barrier_is_refused():
    logs = StepLogs(3)
    logs.of(K).append(step(1))
    with pytest.raises(ProtocolError, match="does not know the barrier of snapshot 4"):
        logs.restart([K], 4)


def test_missing_steps_and_malformed_data_are_refused():
    logs = StepLogs(0)
    logs.of(K).append(step(1))
    with pytest.raises(ProtocolError, match="step 3 follows step 1"):
        logs.of(K).learn(3, [step(4)])
    with pytest.raises(ProtocolError, match="malformed log of steps"):
        logs.learn(b"\xc1")
