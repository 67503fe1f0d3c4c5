"""Logs of a snapshot are replayed on the channels from which they come."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from penstock import StreamExecutionEnvironment
from penstock.dataflow.graph.compile import compile_graph
from penstock.dataflow.graph.execution_graph import ChannelId
from penstock.dataflow.time.watermark import Watermark
from penstock.runtime.control.job_code import JobCode
from penstock.runtime.network.input_gate import InputGate
from penstock.runtime.network.time_elements import to_marker
from penstock.runtime.serialization.codec import Codec
from penstock.runtime.serialization.record_batch import RecordBatch
from penstock.runtime.serialization.type_registry import TypeRegistry
from penstock.runtime.task.snapshots.log_replay import LogReplayer, RestoredLog
from penstock.snapshot.metadata.handles import LogHandle
from penstock.snapshot.storage.in_flight_log import BATCH, frame

CODEC = Codec(TypeRegistry())


class Consumer:
    """The second of two subtasks that count the records of two sources by key."""

    def __init__(self) -> None:
        env = StreamExecutionEnvironment.get_execution_environment()
        env.set_parallelism(2)
        numbers = env.from_sequence(0, 9).uid("numbers")
        numbers.key_by(lambda number: number).count().uid("counts").print()
        graph, config = env._graph, env._config
        plan = compile_graph(graph, config)
        (self.chain,) = [c for c in plan.chains if c.root.operator.uid == "counts"]
        self.gate = InputGate(lambda: None, lambda: 0.0)
        (link,) = self.chain.inputs
        for source in range(2):
            self.gate.add(ChannelId(link, source, 1), 4)
        self._replayer = LogReplayer(JobCode(graph, config, plan, [], (), ""), plan, CODEC, 1)

    def replay(self, *logs: RestoredLog) -> list[tuple[int, Any]]:
        """Return what is replayed, each with the source of its channel."""
        return [
            (channel.id.source, e.rows() if isinstance(e, RecordBatch) else e)
            for channel, e in self._replayer.replay(self.chain.id, self.gate, list(logs))
            if channel is not None
        ]


def log(source: int, *elements: list[int] | Watermark, **rescaled: bool) -> RestoredLog:
    """Return the log of a channel from a subtask of the source."""
    frames = b""
    for element in elements:
        if isinstance(element, Watermark):
            marker = to_marker(element)
            frames += frame(marker.kind, marker.payload)
        else:
            frames += frame(BATCH, CODEC.encode_record_batch(RecordBatch(element)))
    handle = LogHandle("numbers", 0, source, "hash", 1, len(frames), frames)
    return RestoredLog(handle, Path(), **{"rescaled": False, **rescaled})


def test_each_channel_gets_the_watermarks_of_its_own_log() -> None:
    # On the other channel, the watermark 9 would make record 4 late.
    first, second = log(0, [4], Watermark(5)), log(1, [8], Watermark(9))
    assert Consumer().replay(second, first) == [
        (1, [8]),
        (1, Watermark(9)),
        (0, [4]),
        (0, Watermark(5)),
    ]


@pytest.mark.parametrize("which", ["rescaled", "producer_rescaled"])
def test_logs_of_other_channels_are_replayed_without_their_watermarks(which: str) -> None:
    first, third = log(0, [4], Watermark(5), **{which: True}), log(2, [8], **{which: True})
    replayed = Consumer().replay(first, third)
    assert {source for source, _ in replayed} <= {0}
    assert not any(isinstance(element, Watermark) for _, element in replayed)
    if which == "producer_rescaled":
        assert replayed == [(0, [4]), (0, [8])]
