"""Helpers for tests of channels: a gate that counts, a clock, and a sender that decodes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from penstock.dataflow.graph.execution_graph import ChannelId
from penstock.runtime.network.elements import Barrier, Element, EncodedBatch
from penstock.runtime.network.input_gate import InputGate
from penstock.runtime.serialization.codec import Codec
from penstock.runtime.serialization.record_batch import RecordBatch
from penstock.runtime.serialization.type_registry import TypeRegistry

CODEC = Codec(TypeRegistry())


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class Gated:
    """A gate with channels by number, and how often it woke its task."""

    def __init__(self, channels: int = 2, capacity: int = 2) -> None:
        self.clock = Clock()
        self.woken = 0
        self.gate = InputGate(self._wake, self.clock)
        self.channels = [self.gate.add(ChannelId(0, i, 0), capacity) for i in range(channels)]

    def _wake(self) -> None:
        self.woken += 1

    def drain(self) -> list[tuple[int, Any]]:
        taken = []
        while (item := self.gate.take()) is not None:
            channel, element = item
            taken.append((channel.id.source, shown(element)))
        return taken


def shown(element: Element) -> Any:
    if isinstance(element, RecordBatch):
        return element.rows()
    if isinstance(element, EncodedBatch):
        return CODEC.decode_batch(element.payload)
    return element.number if isinstance(element, Barrier) else "end"


class FakeSender:
    def __init__(self, credits: int = 100) -> None:
        self.credits = credits
        self.desired_records = 1 << 30
        self.sent: list[Any] = []

    @property
    def takes_partial(self) -> bool:
        return True

    def report_desired_records(self, listener: Callable[[], None]) -> None:
        """It never changes."""

    def send_batch(self, payload: bytes, count: int) -> None:
        self.credits -= 1
        records = CODEC.decode_batch(payload)
        assert len(records) == count
        self.sent.append(records)

    def send_marker(self, element: Element) -> None:
        self.sent.append(shown(element))
