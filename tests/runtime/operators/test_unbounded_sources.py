"""Sources whose splits never end: every split is read, at any parallelism.

Method: the split assigner and the source input of a task alone, and whole jobs on the simulated
cluster. A record is (split, index), so the output shows which splits were read, and how far.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing

from penstock.dataflow.config import JobConfig
from penstock.dataflow.environment import StreamExecutionEnvironment
from penstock.dataflow.graph.compile import compile_graph
from penstock.dataflow.source import (
    ListEnumerator,
    Read,
    ReaderContext,
    Source,
    SourceReader,
    Split,
    SplitEnumerator,
)
from penstock.runtime.control.job_code import JobCode
from penstock.runtime.jobmanager.attempt.split_assigner import SplitAssigner
from penstock.runtime.jobmanager.job_settings import JobSettings
from penstock.runtime.jobmanager.jobmanager import JobManager
from penstock.runtime.minicluster.worker_launcher import InProcessLauncher
from penstock.runtime.operators.source_input import SourceInput
from penstock.runtime.serialization.record_batch import RecordBatch
from penstock.runtime.system.signal import Signal
from penstock.runtime.system.system import real_system
from penstock.runtime.user_code.process_logging import LogAttributes
from tests.simulation.job import LEDGERS, Ledger, LedgerSink
from tests.simulation.run_program import Ran, program, run_program

LEDGER = -77


def rows(batch: RecordBatch | None) -> list[Any]:
    assert batch is not None
    return batch.rows()


@dataclass
class Endless(Source):
    """Splits that never end, dealt to whichever task asks first."""

    splits: int
    blocking: bool = False
    #: Of split 0; the others never end.
    length: int | None = None
    bounded = False

    def create_enumerator(self, parallelism: int) -> SplitEnumerator:
        return ListEnumerator([Split(str(i), i) for i in range(self.splits)])

    def create_reader(self, context: ReaderContext) -> SourceReader:
        return EndlessReader(self)


class EndlessReader(SourceReader):
    def __init__(self, source: Endless) -> None:
        self.blocking, self.length = source.blocking, source.length
        self.closed = False

    def open(self, split: Split, position: Any) -> None:
        self.split, self.next = split.payload, position or 0

    def read(self, max_records: int) -> Read:
        self.next += 1
        finished = self.split == 0 and self.next == self.length
        return Read([(self.split, self.next - 1)], self.next, finished, 0.0 if finished else 0.01)

    def close(self) -> None:
        self.closed = True


def dealer_of(source: Source, parallelism: int) -> tuple[SplitAssigner, int]:
    env = StreamExecutionEnvironment.get_execution_environment()
    env.from_source(source, None, "endless").print()
    config = JobConfig(parallelism=parallelism)
    plan = compile_graph(env._graph, config)
    dealer = SplitAssigner(JobCode(env._graph, config, plan), plan)
    dealer.start(None)
    return dealer, next(chain.id for chain in plan.chains if chain.is_source)


def payload(split: Split | None) -> Any:
    return None if split is None else split.payload


def test_a_task_gets_no_second_endless_split_while_another_task_has_none() -> None:
    dealer, chain = dealer_of(Endless(5), 3)
    assert payload(dealer.next_split(chain, 0)) == 0
    assert dealer.next_split(chain, 0) is None
    assert not dealer.exhausted(chain, 0)
    assert payload(dealer.next_split(chain, 2)) == 1
    assert dealer.next_split(chain, 0) is None
    assert payload(dealer.next_split(chain, 1)) == 2
    assert payload(dealer.next_split(chain, 0)) == 3
    assert payload(dealer.next_split(chain, 1)) == 4
    assert dealer.next_split(chain, 2) is None
    assert dealer.exhausted(chain, 2)
    # A task that was told that there is none holds up no other.
    assert dealer.next_split(chain, 0) is None
    assert dealer.exhausted(chain, 0)


def test_the_splits_of_a_bounded_source_go_to_the_task_that_asks() -> None:
    class Bounded(Endless):
        bounded = True

    dealer, chain = dealer_of(Bounded(3), 2)
    assert [payload(dealer.next_split(chain, 0)) for _ in range(3)] == [0, 1, 2]


class Fed:
    """A source input with a clock of its own."""

    def __init__(self, source: Endless) -> None:
        self.source = source
        self.now, self.asked, self.readers = 0.0, 0, list[SourceReader]()
        self.input = SourceInput(
            self._create, lambda: self.now, self._ask, lambda: None, in_turns=True
        )

    def _create(self) -> SourceReader:
        reader = self.source.create_reader(ReaderContext("uid", 0, 1))
        self.readers.append(reader)
        return reader

    def _ask(self) -> None:
        self.asked += 1


def test_a_task_reads_all_its_endless_splits_in_turn() -> None:
    fed = Fed(Endless(3))
    source_input = fed.input
    assert source_input.read(10) is None
    assert fed.asked == 1
    for number in range(3):
        source_input.assign(Split(str(number), number))
    assert [rows(source_input.read(10)) for _ in range(3)] == [[(0, 0)], [(1, 0)], [(2, 0)]]
    assert fed.asked == 2  # one question at a time
    assert source_input.read(10) is None
    assert source_input.wake_at == 0.01
    fed.now = 0.01
    assert rows(source_input.read(10)) == [(0, 1)]
    assert source_input.snapshot() == [["1", 1, 1], ["2", 2, 1], ["0", 0, 2]]
    source_input.no_more()
    assert not source_input.ended
    again = Fed(Endless(3)).input
    again.restore(source_input.snapshot())
    assert [rows(again.read(10)) for _ in range(3)] == [[(1, 1)], [(2, 1)], [(0, 2)]]
    source_input.close()
    assert [reader.closed for reader in fed.readers] == [True] * 3


def test_a_split_that_ends_after_all_is_closed() -> None:
    fed = Fed(Endless(2, length=1))
    source_input = fed.input
    source_input.assign(Split("0", 0))
    source_input.assign(Split("1", 1))
    source_input.no_more()
    assert rows(source_input.read(10)) == [(0, 0)]
    assert [reader.closed for reader in fed.readers] == [True, False]
    assert [entry[0] for entry in source_input.snapshot()] == ["1"]
    assert not source_input.ended


def test_all_readers_are_closed_even_if_one_of_them_raises() -> None:
    fed = Fed(Endless(3))
    for number in range(3):
        fed.input.assign(Split(str(number), number))

    def fail() -> None:
        raise OSError("the connection is gone")

    for place in (0, 2):
        fed.readers[place].close = fail  # type: ignore[method-assign]
    with pytest.raises(OSError, match="the connection is gone"):
        fed.input.close()
    assert fed.readers[1].closed  # type: ignore[attr-defined]


def run(folder: Path, parallelism: int, source: Endless, seed: int, resume: bool) -> Ran:
    def build(env: StreamExecutionEnvironment) -> None:
        stream = env.from_source(source, None, "endless").uid("endless")
        stream.rebalance().map(lambda record: record).uid("map").sink_to(LedgerSink(LEDGER))

    async def stop(job: JobManager, *_: Any) -> None:
        ledger, wanted = LEDGERS[LEDGER], before + Counter(range(source.splits))
        while any(splits_of(ledger)[split] < n for split, n in wanted.items()):
            await trio.sleep(0.05)
        job.stop()

    config = JobConfig(
        name="endless", parallelism=parallelism, max_parallelism=8, checkpoint_dir=str(folder)
    )
    config = replace(config, checkpoint_interval_seconds=0.1)
    before = splits_of(LEDGERS[LEDGER])
    options = JobSettings(resume="newest" if resume else None)
    return run_program(program(build, config), seed=seed, options=options, script=stop, delay=0.01)


def splits_of(ledger: Ledger) -> Counter[int]:
    return Counter(split for split, _ in ledger.output())


@pytest.mark.parametrize("blocking", [False, True])
@pytest.mark.parametrize("parallelisms", [(2, 3), (3, 2), (2, 1, 4)])
def test_every_endless_split_is_read_at_any_parallelism(
    tmp_path: Path, blocking: bool, parallelisms: tuple[int, ...]
) -> None:
    # Each run is stopped when all splits have gone on; it would hang if one were not read.
    LEDGERS[LEDGER] = Ledger()
    try:
        for number, parallelism in enumerate(parallelisms):
            source = Endless(5, blocking)
            ran = run(tmp_path, parallelism, source, number + 1, resume=number > 0)
            assert not ran.hung, f"a split was not read: {splits_of(LEDGERS[LEDGER])}"
            assert not isinstance(ran.outcome, Exception), ran.outcome
            assert not ran.crashes
        output = LEDGERS[LEDGER].output()
    finally:
        del LEDGERS[LEDGER]
    for split in range(5):
        indices = sorted(index for of, index in output.elements() if of == split)
        assert indices == list(range(len(indices)))


def test_a_thread_that_waits_for_one_endless_split_does_not_hold_up_another() -> None:
    async def main() -> None:
        signal = Signal()
        never = trio.Event()
        source = Endless(2, blocking=True)
        source_input = SourceInput(
            lambda: source.create_reader(ReaderContext("uid", 0, 1)),
            trio.current_time,
            lambda: None,
            signal.set,
            in_turns=True,
        )

        async def offload(function: Callable[[], Read]) -> Read:
            read = function()
            if read.records[0][0] == 0:
                await never.wait()
            return read

        async with trio.open_nursery() as nursery:
            nursery.start_soon(source_input.pump, offload, signal.wait_for)
            source_input.assign(Split("0", 0))
            source_input.assign(Split("1", 1))
            records = []
            while len(records) < 3:
                batch = source_input.read(10)
                records += rows(batch) if batch is not None else []
                await trio.sleep(0.01)
            nursery.cancel_scope.cancel()
        assert records == [(1, 0), (1, 1), (1, 2)]

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))


@pytest.mark.parametrize("in_process", [False, True])
def test_readers_that_block_leave_threads_for_snapshots(in_process: bool) -> None:
    async def main() -> None:
        over = threading.Event()
        async with trio.open_nursery() as nursery:
            launcher = InProcessLauncher(nursery, LogAttributes())
            system = launcher.create_system() if in_process else real_system()
            for _ in range(60):
                nursery.start_soon(system.read or system.offload, over.wait)
            await trio.testing.wait_all_tasks_blocked()
            try:
                with trio.fail_after(20):
                    assert await system.offload(lambda: "written") == "written"
            finally:
                over.set()

    trio.run(main)
