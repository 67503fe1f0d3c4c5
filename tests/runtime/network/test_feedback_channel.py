"""Back-edges and the gate: no bound, order over memory and disk, logs, weights, replay."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock.dataflow.errors import ProtocolError, StoreError
from penstock.dataflow.graph.execution_graph import ChannelId
from penstock.runtime.network.channel_log import ChannelLog, EdgeIdentity
from penstock.runtime.network.elements import Barrier, Element, EncodedBatch, EndOfInput
from penstock.runtime.network.feedback_channel import FeedbackChannel
from penstock.runtime.network.input_gate import BACK_WEIGHT, InputGate
from penstock.runtime.network.loop_probe import NOTHING, LoopProbe, ProbeRequest
from penstock.runtime.serialization.codec import Codec
from penstock.runtime.serialization.record_batch import RecordBatch
from penstock.runtime.serialization.type_registry import TypeRegistry
from penstock.snapshot.protocols.events import SnapshotKind
from penstock.snapshot.storage.in_flight_log import BATCH, Range, frames

CODEC = Codec(TypeRegistry())
IN_MEMORY = 1 << 20


class Looped:
    """A gate with a regular channel and a back-edge."""

    def __init__(self, folder: Path, memory_bytes: int = IN_MEMORY) -> None:
        self.woken = 0
        self.reached: list[int] = []
        self.gate = InputGate(self._wake, lambda: 0.0)
        self.regular = self.gate.add(ChannelId(0, 0, 0), 100)
        self.back = FeedbackChannel(
            ChannelId(1, 2, 0),
            self.gate,
            2,
            lambda: 0.0,
            edge=EdgeIdentity("p", "c", 0, "hash", "'p' → 'c'"),
            encode=CODEC.encode_record_batch,
            folder=folder / "back",
            memory_bytes=memory_bytes,
        )
        self.back.report_barriers(lambda channel, barrier: self.reached.append(barrier.number))
        self.back._spill._segment_bytes = 40
        self.gate.add_back_edge(self.back)

    def _wake(self) -> None:
        self.woken += 1

    def put(self, *elements: Any) -> None:
        for element in elements:
            self.back.put(element_of(element))

    def drain(self) -> list[Any]:
        taken = []
        while (item := self.gate.take()) is not None:
            taken.append(shown(item[1]))
        return taken


def element_of(what: Any) -> Element:
    if what == "end":
        return EndOfInput()
    return Barrier(what) if isinstance(what, int) else RecordBatch(list(what))


def shown(element: Element) -> Any:
    if isinstance(element, RecordBatch):
        return "".join(element.rows())
    if isinstance(element, EncodedBatch):
        return "".join(CODEC.decode_batch(element.payload))
    return element.number if isinstance(element, Barrier) else "end"


def logged(log: ChannelLog) -> list[str]:
    found = []
    for part in log.parts():
        if isinstance(part, Range):
            data = part.segment.path.read_bytes()[part.start : part.end]
            found += [bytes(payload) for kind, payload in frames(data) if kind == BATCH]
        elif part is not None:
            found.append(part)
    return ["".join(CODEC.decode_batch(payload)) for payload in found]


@pytest.fixture(params=[IN_MEMORY, 1], ids=["in memory", "on disk"])
def looped(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Looped]:
    made = Looped(tmp_path, request.param)
    yield made
    made.back.close()


# ---- the channel


def test_elements_come_in_order_without_a_bound(looped: Looped) -> None:
    elements: list[Any] = [*("ab" * 50), 1, "c", 2, "end", 3]
    looped.put(*elements)
    assert looped.back.room > 1 << 20
    assert len(looped.back) == len(elements)
    assert looped.back.queued_records == 101
    assert looped.drain() == elements
    assert (len(looped.back), looped.back.queued_records, looped.back.spilled_bytes) == (0, 0, 0)
    assert not looped.gate.ready


def test_an_encoded_batch_is_spilled_as_it_is(looped: Looped) -> None:
    payloads = [CODEC.encode_batch([letter]) for letter in "abc"]
    for payload in payloads:
        looped.back.put(EncodedBatch(memoryview(payload), 1))
    log = looped.back.start_log(1)
    assert looped.drain() == list("abc")
    looped.back.drop_log()
    assert logged(log) == list("abc")
    log.release()


def test_barriers_keep_their_kind_over_the_disk(looped: Looped) -> None:
    barriers = [Barrier(n, kind) for n, kind in enumerate(SnapshotKind)]
    for barrier in barriers:
        looped.back.put(barrier)
    assert looped.gate._waiting_barriers == len(barriers)
    taken = [looped.back.take() for _ in barriers]
    assert taken == barriers
    assert looped.gate._waiting_barriers == 0


def test_probes_come_back_from_the_disk_and_are_not_logged(looped: Looped) -> None:
    elements: list[Element] = [
        LoopProbe(3, outside=-5, idle=None, lowest=NOTHING),
        ProbeRequest(3),
    ]
    for element in elements:
        looped.put("a")
        looped.back.put(element)
    log = looped.back.start_log(1)
    taken = [looped.back.take() for _ in range(2 * len(elements))]
    assert taken[1::2] == elements
    looped.back.drop_log()
    assert logged(log) == ["a"] * len(elements)
    log.release()


def test_a_credit_goes_back_when_a_batch_arrives(looped: Looped) -> None:
    credits: list[None] = []
    looped.back.attach_sender(lambda: credits.append(None))
    looped.put("a", 1, "b")
    assert len(credits) == 2
    looped.drain()
    assert len(credits) == 2


def test_the_task_is_woken_once_and_a_blocked_back_edge_keeps_all(looped: Looped) -> None:
    looped.put("a", "b")
    assert looped.woken == 1
    looped.back.block()
    looped.put("c")
    assert looped.drain() == []
    with pytest.raises(ProtocolError, match="blocked: True"):
        looped.back.take()
    looped.back.unblock()
    assert looped.drain() == list("abc")


def test_after_the_end_of_input_come_barriers_only(looped: Looped) -> None:
    looped.put("end", 1)
    with pytest.raises(ProtocolError, match="after the end"):
        looped.put("a")
    with pytest.raises(ProtocolError, match="second end"):
        looped.put("end")


def test_a_full_disk_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    looped = Looped(tmp_path, 1)
    looped.put("a")

    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(looped.back._spill, "append", full)
    with pytest.raises(StoreError, match=r"'p' → 'c'.*Free some space.*set_memory"):
        looped.put("b")


# ---- logs


def test_a_log_has_what_waits_and_what_comes_until_the_barrier(looped: Looped) -> None:
    looped.put("a", "b")
    log = looped.back.start_log(1)
    looped.put("c")
    assert looped.reached == []
    looped.put(1)
    assert looped.reached == [1]
    looped.put("d")
    assert log.records == 3
    assert logged(log) == list("abc")
    assert looped.drain() == ["a", "b", "c", 1, "d"]
    assert (log.edge.producer, log.source) == ("p", 2)
    log.release()


def test_a_log_is_the_same_if_it_is_written_after_all_was_processed(looped: Looped) -> None:
    looped.put("a")
    log = looped.back.start_log(1)
    looped.put("b", "c", 1, "d")
    assert looped.drain() == ["a", "b", "c", 1, "d"]
    looped.put("e", "f")
    assert logged(log) == list("abc")
    log.release()
    assert looped.drain() == ["e", "f"]


@pytest.mark.parametrize("barrier", [3, 5])
def test_a_log_that_begins_behind_its_barrier_ends_there_at_once(
    looped: Looped, barrier: int
) -> None:
    looped.put("a", 2, "b", barrier, "c", "d")
    log = looped.back.start_log(3)
    assert looped.reached == [barrier]
    looped.put("e")
    assert (log.records, logged(log)) == (2, ["a", "b"])
    log.release()
    assert looped.drain() == ["a", 2, "b", barrier, "c", "d", "e"]


def test_all_ahead_of_a_barrier_may_be_processed_when_its_log_begins(looped: Looped) -> None:
    looped.put("a", "b", "c", 1, "d", "e", "f", "g")
    assert [shown(looped.back.take()) for _ in range(3)] == list("abc")
    log = looped.back.start_log(1)
    assert (log.records, logged(log)) == (0, [])
    assert looped.reached == [1]
    log.release()
    assert looped.drain() == [1, "d", "e", "f", "g"]


def test_a_lower_barrier_ends_no_log_and_a_higher_one_does(looped: Looped) -> None:
    log = looped.back.start_log(5)
    looped.put("a", 4, "b", 6, "c")
    assert looped.reached == [6]
    assert logged(log) == ["a", "b"]
    log.release()


def test_a_dropped_log_leaves_nothing_behind(looped: Looped, tmp_path: Path) -> None:
    looped.put("a", "b")
    log = looped.back.start_log(1)
    looped.put("c")
    looped.back.drop_log()
    log.release()
    looped.put("d", 1)
    assert looped.reached == []
    assert looped.drain() == ["a", "b", "c", "d", 1]
    assert not list((tmp_path / "back").glob("*"))


def test_two_logs_of_a_slow_task_hold_what_was_there_in_spite_of_changes(looped: Looped) -> None:
    # The records are changed by the task as it processes them, before either log is written.
    for letter in "abc":
        looped.back.put(RecordBatch([[letter]]))
    first = looped.back.start_log(1)
    looped.put(1)
    second = looped.back.start_log(2)
    looped.back.put(RecordBatch([["d"]]))
    looped.put(2)
    while (item := looped.gate.take()) is not None:
        element = item[1]
        if isinstance(element, RecordBatch):
            element[0].append("changed")
    for log, expected in ((first, "abc"), (second, "abcd")):
        found = []
        for part in log.parts():
            if isinstance(part, Range):
                data = part.segment.path.read_bytes()[part.start : part.end]
                batches = [bytes(payload) for kind, payload in frames(data) if kind == BATCH]
            else:
                batches = [] if part is None else [part]
            found += [record for batch in batches for record in CODEC.decode_batch(batch)]
        assert found == [[letter] for letter in expected]
        log.release()
    assert not looped.back._entries


def test_a_log_of_which_only_the_number_is_wanted_holds_nothing(looped: Looped) -> None:
    looped.put("a", "b")
    log = looped.back.start_log(1, keep=False)
    looped.put("c", 1)
    assert log.records == 3
    assert logged(log) == []
    assert looped.drain() == ["a", "b", "c", 1]


def test_any_sequence_keeps_the_order_and_each_log_its_records(tmp_path: Path) -> None:
    for seed in range(150):
        rng = random.Random(seed)
        looped = Looped(tmp_path / str(seed), rng.choice([1, 200, 600, IN_MEMORY]))
        queue: list[Any] = []
        logs: list[tuple[ChannelLog, list[str]]] = []
        running: list[str] | None = None
        number = 1
        for step in range(100):
            match rng.randrange(8):
                case 0 | 1 | 2 | 3:
                    text = "xyz"[: rng.randint(1, 3)] + str(step)
                    looped.put(text)
                    queue.append(text)
                    if running is not None:
                        running.append(text)
                case 4 if rng.random() < 0.5:
                    looped.put(number)
                    queue.append(number)
                    running = None
                    number += 1
                case 5 if running is None:
                    ahead = queue[: queue.index(number)] if number in queue else queue
                    running = [what for what in ahead if isinstance(what, str)]
                    logs.append((looped.back.start_log(number), running))
                case 6 if logs and logs[0][1] is not running:
                    log, expected = logs.pop(0)
                    assert logged(log) == expected, seed
                    assert log.records == sum(map(len, expected)), seed
                    log.release()
                case _:
                    for _ in range(min(len(queue), rng.choice([1, 2, 10]))):
                        item = looped.gate.take()
                        assert item is not None and shown(item[1]) == queue.pop(0), seed
            assert len(looped.back) == len(queue), seed
            waiting = [len(what) for what in queue if isinstance(what, str)]
            assert looped.back.queued_records == sum(waiting), seed
        looped.back.drop_log()
        for log, expected in logs:
            assert logged(log) == expected, seed
            log.release()
        assert looped.drain() == queue, seed
        assert not list((tmp_path / str(seed)).glob("back/*")), seed
        looped.back.close()


# ---- the gate


def test_back_edges_go_first_but_not_for_ever(tmp_path: Path) -> None:
    looped = Looped(tmp_path)
    count = 2 * BACK_WEIGHT + 4
    for _ in range(count):
        looped.put("b")
    for _ in range(4):
        looped.regular.put(RecordBatch(["r"]))
    taken = "".join(looped.drain())
    assert taken.startswith(("b" * BACK_WEIGHT + "r") * 2)
    assert (taken.count("b"), taken.count("r")) == (count, 4)


def test_while_a_barrier_waits_they_alternate(tmp_path: Path) -> None:
    looped = Looped(tmp_path)
    for _ in range(5):
        looped.put("b")
        looped.regular.put(RecordBatch(["r"]))
    looped.regular.put(Barrier(1))
    assert looped.drain() == [*("br" * 5), 1]


def test_a_loop_that_is_always_busy_lets_a_barrier_pass(tmp_path: Path) -> None:
    looped = Looped(tmp_path)
    for _ in range(10):
        looped.regular.put(RecordBatch(["r"]))
    looped.regular.put(Barrier(1))
    looped.put("b")
    taken = 0
    while (item := looped.gate.take()) is not None and not isinstance(item[1], Barrier):
        looped.put("b")  # whatever is processed makes another round
        taken += 1
        assert taken <= 22
    assert item is not None and item[1] == Barrier(1)


def test_logs_are_replayed_before_anything_else_is_taken(tmp_path: Path) -> None:
    looped = Looped(tmp_path)
    looped.put("b")
    looped.regular.put(Barrier(1))
    looped.gate.replay(iter([(looped.back, RecordBatch(["x"])), (looped.back, RecordBatch(["y"]))]))
    assert looped.gate.ready
    # A replay's end is a step of its own.
    assert looped.drain() == ["x", "y"]
    assert looped.drain() == ["b", 1]
    assert not looped.gate.ready


def test_a_replay_is_read_as_it_is_taken(tmp_path: Path) -> None:
    looped = Looped(tmp_path)
    read = []

    def batches() -> Iterator[Any]:
        for text in "xyz":
            read.append(text)
            yield looped.back, RecordBatch([text])

    looped.gate.replay(batches())
    looped.gate.take()
    assert read == ["x"]
    assert looped.drain() == ["y", "z"]
