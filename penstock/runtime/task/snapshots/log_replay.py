"""Replay the in-flight logs of a restored task, before it reads any input.

A log belongs to an edge. The uids of the operators at its ends and the index of the consumer's
input identify the edge. So the edge is found even if it is no longer a back-edge. If the consumer's
parallelism has changed, each subtask reads all logs of the edge and selects its share of the
records.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from penstock.dataflow.functions import method_of
from penstock.dataflow.graph.execution_graph import ExecutionGraph, Link
from penstock.dataflow.graph.job_graph import Partitioning
from penstock.runtime.control.job_code import JobCode
from penstock.runtime.network.elements import TimeElement
from penstock.runtime.network.input_channel import InputChannel
from penstock.runtime.network.input_gate import InputGate
from penstock.runtime.network.time_elements import to_time_element
from penstock.runtime.serialization.codec import Codec
from penstock.runtime.serialization.record_batch import RecordBatch
from penstock.snapshot.coordination.log_redistribution import redistribute_log
from penstock.snapshot.metadata.handles import OWN_INPUT, LogHandle
from penstock.snapshot.storage.decoding import Decoding
from penstock.snapshot.storage.in_flight_log import BATCH, read_elements


@dataclass(frozen=True)
class RestoredLog:
    """An in-flight log of the snapshot from which the job is restored.

    Arguments:
        log: the handle of the log.
        folder: the folder of the snapshot.
        rescaled: whether the consumer's parallelism has changed since the snapshot.
        producer_rescaled: whether the producer's parallelism has changed since the snapshot.
    """

    log: LogHandle
    folder: Path
    rescaled: bool
    producer_rescaled: bool = False

    @property
    def same_channel(self) -> bool:
        """Return whether the log belongs to the same channel as before."""
        return not (self.rescaled or self.producer_rescaled)


class LogReplayer:
    """Reads in-flight logs for the tasks of one worker.

    Arguments:
        code: the code of the job, which contains the key selectors and partitioners.
        plan: the execution graph.
        codec: the codec, which decodes batches.
        subtask: the index of the worker's slot.
    """

    def __init__(self, code: JobCode, plan: ExecutionGraph, codec: Codec, subtask: int) -> None:
        self._code, self._plan, self._codec, self._subtask = code, plan, codec, subtask

    def replay(
        self, chain: int, gate: InputGate, logs: list[RestoredLog]
    ) -> Iterator[tuple[InputChannel | None, RecordBatch | TimeElement]]:
        """Yield the batches of the logs, each with the channel on which it was in flight.

        Watermarks between the batches are also yielded, unless the task or the producer was
        rescaled: a channel would then get the watermarks of several old channels.

        The channel is None for records that the task's own source had read.

        Arguments:
            chain: the number of the task's chain.
            gate: the input gate of the task.
            logs: the logs to replay, in order.
        """
        for restored in logs:
            link = self._link(chain, restored.log)
            channel, take, same_channel = None, None, restored.same_channel
            if link is not None:
                channels = {id.source: c for id, c in gate.channels.items() if id.link == link.id}
                # Each channel has a watermark of its own. That of another channel would make
                # records late.
                same_channel = same_channel and restored.log.source in channels
                source = restored.log.source if same_channel else min(channels)
                channel = channels[source]
                take = self._share(link) if restored.rescaled else None
            elif restored.log.input != OWN_INPUT:
                continue  # The edge no longer exists. This was checked when the job was resumed.
            elif restored.rescaled:
                take = self._round_robin_share(chain)
            what = f"a record in flight to {self._plan.chains[chain].root.operator.name!r}"
            for kind, payload in read_elements(restored.log, restored.folder):
                with Decoding(what, restored.folder):
                    element = (
                        self._codec.decode_record_batch(payload)
                        if kind == BATCH
                        else to_time_element(kind, payload)
                    )
                if not isinstance(element, RecordBatch):
                    if same_channel:
                        yield channel, element
                    continue
                batch = element
                if take is not None:
                    batch = batch.select(take(batch.rows()))
                if batch:
                    yield channel, batch

    def _link(self, chain: int, log: LogHandle) -> Link | None:
        links = [self._plan.links[number] for number in self._plan.chains[chain].inputs]
        same = [link for link in links if (link.producer, link.input) == (log.producer, log.input)]
        # Two edges may have the same ends, and differ only in their partitioning.
        alike = [link for link in same if link.partitioning.value == log.partitioning]
        return next(iter(alike or same), None)

    def _round_robin_share(self, chain: int) -> Callable[[list[Any]], Sequence[int]]:
        plan = self._plan
        return redistribute_log(
            Partitioning.REBALANCE,
            subtask=self._subtask,
            parallelism=plan.chains[chain].parallelism,
            max_parallelism=plan.max_parallelism,
        )

    def _share(self, link: Link) -> Callable[[list[Any]], Sequence[int]]:
        """Return the function that selects this subtask's records of a log."""
        edge = self._code.graph.edges[link.edge]
        return redistribute_log(
            link.partitioning,
            subtask=self._subtask,
            parallelism=self._plan.chains[link.target].parallelism,
            max_parallelism=self._plan.max_parallelism,
            selector=method_of(edge.selector, "get_key"),
            partition=method_of(edge.partitioner, "partition"),
        )
