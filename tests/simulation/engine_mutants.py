"""Engines with a broken protocol, which random jobs must find out.

    python -m tests.simulation.engine_mutants --seeds 200

It prints after how many seeds each is caught, and by which check. `make simulate-mutants` runs it.
"""

from __future__ import annotations

import argparse
import logging
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import pytest

from penstock import StreamExecutionEnvironment
from penstock.dataflow.config import CheckpointingMode, JobConfig
from penstock.dataflow.config.restart_scope import RestartScope
from penstock.dataflow.graph import batch_mode
from penstock.dataflow.graph.job_graph import JobGraph
from penstock.runtime.control import messages
from penstock.runtime.jobmanager import jobmanager
from penstock.runtime.jobmanager.attempt.checkpoint_driver import CheckpointDriver
from penstock.runtime.jobmanager.attempt.region import send_all
from penstock.runtime.jobmanager.attempt.split_assigner import SplitAssigner
from penstock.runtime.jobmanager.snapshots import restored_output, snapshot_publisher
from penstock.runtime.jobmanager.snapshots.pending_snapshot import PendingSnapshot
from penstock.runtime.jobmanager.snapshots.snapshot_publisher import SnapshotPublisher
from penstock.runtime.network.elements import TimeElement
from penstock.runtime.network.feedback_channel import FeedbackChannel
from penstock.runtime.network.input_channel import InputChannel
from penstock.runtime.network.input_gate import InputGate
from penstock.runtime.network.recorded_channel import RecordedChannel
from penstock.runtime.network.resumable_channel import ResumableChannel
from penstock.runtime.network.step_logs import Step, StepLog
from penstock.runtime.operators import registry
from penstock.runtime.operators.async_wait.operator import AsyncWaitOperator
from penstock.runtime.operators.source_input import SourceInput
from penstock.runtime.operators.time.operator_timers import OperatorTimers
from penstock.runtime.serialization.record_batch import RecordBatch
from penstock.runtime.task.activities.repeatable import RepeatableResults
from penstock.runtime.task.snapshots.in_flight_data import InFlightRecorder
from penstock.runtime.task.snapshots.log_replay import LogReplayer, RestoredLog
from penstock.runtime.task.snapshots.task_snapshot_writer import TaskSnapshotWriter
from penstock.runtime.task.task_steps import TaskSteps
from penstock.runtime.task.watermark_tracker import WatermarkTracker
from penstock.runtime.taskmanager import protocol_choice
from penstock.snapshot.coordination.coordinator import (
    Coordinator,
    CoordinatorCommand,
    CoordinatorState,
    HoldSavepoint,
    PublishSnapshot,
)
from penstock.snapshot.metadata.handles import EventTimeState
from penstock.snapshot.metadata.manifest import Manifest
from penstock.snapshot.protocols.aligned import AlignedProtocol
from penstock.snapshot.protocols.at_least_once import AtLeastOnceProtocol
from penstock.snapshot.protocols.events import (
    BarrierArrived,
    BlockChannel,
    Broadcast,
    Command,
    Event,
    UnblockChannels,
)
from penstock.snapshot.state import MISSING
from penstock.snapshot.state.cold.row_store import RowStore
from penstock.snapshot.state.restore import Restorer
from penstock.snapshot.storage.folder_lock import FolderLock
from penstock.snapshot.storage.manifest_publisher import ManifestPublisher
from penstock.snapshot.storage.retention import Retention
from penstock.testing.simulation import FAULTS
from tests.simulation import run_program
from tests.simulation.random_jobs import settings
from tests.simulation.random_jobs.job import FiniteJob
from tests.simulation.random_jobs.runner import CaseResult, run_case

#: The number of seeds within which each mutant must be caught.
SEEDS = 200
Patch = pytest.MonkeyPatch
EXACT, UNALIGNED, AT_LEAST, BATCH = ["exactly once"], ["unaligned"], ["at least once"], ["batch"]


@dataclass(frozen=True)
class Mutant:
    """An engine with one fault.

    Arguments:
        breaks: what is wrong with it.
        patch: makes the engine so.
        modes: the checkpointing modes that it concerns; all if it is None.
        shapes: the shapes of jobs that it concerns; all if there are none.
        faults: the kinds of faults with which it must be caught.
    """

    breaks: str
    patch: Callable[[Patch], None]
    modes: list[str] | None = None
    shapes: tuple[str, ...] = ()
    faults: tuple[str, ...] = tuple(FAULTS)

    def first_wrong(self, seeds: range) -> tuple[CaseResult, int] | None:
        """Return the first case that goes wrong, and after how many; None if there is none."""
        with pytest.MonkeyPatch.context() as patch:
            self.patch(patch)
            for number, seed in enumerate(seeds, 1):
                result = run_case(seed, self.modes, self.shapes, self.faults)
                _require_no_misfit(result)
                if not result.right:
                    return result, number
        return None


def _require_no_misfit(result: CaseResult) -> None:
    """Raise an error if a mutant fails because it does not fit the engine any more."""
    for crash in result.crashes:
        while isinstance(crash, BaseExceptionGroup):
            crash = crash.exceptions[0]
        if isinstance(crash, TypeError | AttributeError | ImportError):
            raise AssertionError(f"the mutant does not fit the engine: {crash}") from crash


# ---- protocols of tasks


class _BroadcastsEarly(AlignedProtocol):
    """Sends the barrier on when its first one arrives."""

    def handle(self, event: Event) -> list[Command]:
        commands: list[Command] = []
        for command in super().handle(event):
            if isinstance(command, BlockChannel) and len(self.blocked) == 1:
                assert self.number is not None
                commands += [Broadcast(self.number), command]
            elif not (isinstance(command, Broadcast) and len(self.inputs) > 1):
                commands.append(command)
        return commands


class _NeverAligns(AtLeastOnceProtocol):
    """Does not align the last snapshot of a job either."""

    def handle(self, event: Event) -> list[Command]:
        if isinstance(event, BarrierArrived):
            event = replace(event, align=False)
        return super().handle(event)


class _NeverBlocks(AlignedProtocol):
    """Takes records from behind a barrier before the cut."""

    def handle(self, event: Event) -> list[Command]:
        return [
            c for c in super().handle(event) if not isinstance(c, BlockChannel | UnblockChannels)
        ]

    def _barrier(self, event: BarrierArrived) -> list[Command]:
        self.blocked.pop(event.channel, None)
        return super()._barrier(event)


def broadcasts_early(patch: Patch) -> None:
    patch.setattr(protocol_choice, "AlignedProtocol", _BroadcastsEarly)


def never_aligns(patch: Patch) -> None:
    patch.setattr(protocol_choice, "AtLeastOnceProtocol", _NeverAligns)


def never_blocks(patch: Patch) -> None:
    patch.setattr(protocol_choice, "AlignedProtocol", _NeverBlocks)


# ---- logs


def drops_back_edge_logs(patch: Patch) -> None:
    _log_nothing(patch, FeedbackChannel)


def drops_channel_logs(patch: Patch) -> None:
    _log_nothing(patch, RecordedChannel)
    overtake = InFlightRecorder.overtake
    patch.setattr(InFlightRecorder, "overtake", lambda *given: overtake(*given)[:0])


def _log_nothing(patch: Patch, channels: type[RecordedChannel]) -> None:
    start = channels.start_log

    def start_without(channel: Any, number: int, keep: bool = True) -> Any:
        del keep
        return start(channel, number, False)

    patch.setattr(channels, "start_log", start_without)


def replays_on_the_first_channel(patch: Patch) -> None:
    right = LogReplayer.replay

    def replay(
        replayer: LogReplayer, chain: int, gate: InputGate, logs: list[RestoredLog]
    ) -> Iterator[tuple[InputChannel | None, RecordBatch | TimeElement]]:
        for channel, element in right(replayer, chain, gate, logs):
            if channel is not None:
                link = channel.id.link
                channel = next(one for id, one in gate.channels.items() if id.link == link)
            yield channel, element

    patch.setattr(LogReplayer, "replay", replay)


# ---- the store


class _WithoutSync:
    """The file system of a store that syncs nothing."""

    def __init__(self, files: Any) -> None:
        self._files = files

    def __getattr__(self, name: str) -> Any:
        return (lambda path: None) if name == "sync" else getattr(self._files, name)


def skips_fsync(patch: Patch) -> None:
    publish = ManifestPublisher.publish

    def unsynced(publisher: ManifestPublisher, manifest: Manifest) -> Any:
        files, publisher._files = publisher._files, _WithoutSync(publisher._files)  # type: ignore[assignment]
        try:
            return publish(publisher, manifest)
        finally:
            publisher._files = files

    patch.setattr(ManifestPublisher, "publish", unsynced)


def is_not_fenced(patch: Patch) -> None:
    patch.setattr(FolderLock, "require", lambda lock: None)


def ignores_leases(patch: Patch) -> None:
    patch.setattr(Retention, "_leased", lambda retention: set())


def publishes_before_all_files(patch: Patch) -> None:
    acknowledge = Coordinator._acknowledge

    def hasty(coordinator: Coordinator, task: Any, number: int) -> list[CoordinatorCommand]:
        commands = acknowledge(coordinator, task, number)
        missing = coordinator.tasks - coordinator.acknowledged
        if coordinator.state is CoordinatorState.COLLECTING and len(missing) == 1:
            coordinator.state = CoordinatorState.PUBLISHING
            return [PublishSnapshot(number)]
        return commands

    patch.setattr(Coordinator, "_acknowledge", hasty)


# ---- sinks


def commits_early(patch: Patch) -> None:
    publish = SnapshotPublisher.publish

    async def committed(
        publisher: SnapshotPublisher, snapshot: PendingSnapshot, **more: Any
    ) -> None:
        publisher.commits.add(snapshot.committables)
        await publisher.commits.commit()
        await publish(publisher, snapshot, **more)

    patch.setattr(SnapshotPublisher, "publish", committed)


def commits_aborted(patch: Patch) -> None:
    abort = CheckpointDriver._abort

    def committing(driver: CheckpointDriver, number: int, reason: str) -> None:
        pending = driver._pending.get(number)
        if pending is not None:
            driver._publisher.commits.add(pending.committables)
            driver._loop.spawn(driver._publisher.commits.commit)
        abort(driver, number, reason)

    patch.setattr(CheckpointDriver, "_abort", committing)


def commits_savepoints(patch: Patch) -> None:
    execute = CheckpointDriver._execute

    def committing(driver: CheckpointDriver, command: CoordinatorCommand) -> None:
        if isinstance(command, HoldSavepoint):
            driver._publisher.commits.add(driver._pending[command.number].committables)
            driver._loop.spawn(driver._publisher.commits.commit)
        execute(driver, command)

    patch.setattr(CheckpointDriver, "_execute", committing)


def publishes_savepoints_at_once(patch: Patch) -> None:
    execute = CheckpointDriver._execute

    def publishing(driver: CheckpointDriver, command: CoordinatorCommand) -> None:
        if isinstance(command, HoldSavepoint):
            pending = driver._pending[command.number]
            publish = partial(driver._publisher.publish_savepoint, pending, attempt=1)
            driver._loop.spawn(publish)
        execute(driver, command)

    patch.setattr(CheckpointDriver, "_execute", publishing)


def forgets_output_of_savepoints(patch: Patch) -> None:
    execute = CheckpointDriver._execute

    def completing(driver: CheckpointDriver, command: CoordinatorCommand) -> None:
        if isinstance(command, HoldSavepoint):
            send_all(driver._members[command.number], messages.Complete(command.number))
        execute(driver, command)

    patch.setattr(CheckpointDriver, "_execute", completing)


def forgets_pending_output(patch: Patch) -> None:
    for module in (snapshot_publisher, restored_output):
        patch.setattr(module, "pending_committables", lambda manifest: [])


# ---- restore


def restores_no_timers(patch: Patch) -> None:
    restore = OperatorTimers.restore

    def without(timers: OperatorTimers) -> None:
        timers._restored, before = True, timers._restored
        if not before:
            timers._backend.expect("timers/event-time")
            timers._backend.expect("timers/processing-time")
            if "timers/event-time" in timers._backend.tables.names:
                _ = timers.event
        restore(timers)

    patch.setattr(OperatorTimers, "restore", without)


def restores_groups_twice(patch: Patch) -> None:
    create = Restorer.__init__

    def greedy(restorer: Restorer, tables: Any, storage: Any, groups: range) -> None:
        # The handles of a rescaled operator have key groups of other subtasks, too.
        create(restorer, tables, storage, range(groups.start, groups.stop + 2))

    patch.setattr(Restorer, "__init__", greedy)


def repeats_no_requests(patch: Patch) -> None:
    start = AsyncWaitOperator.open

    def without(operator: AsyncWaitOperator) -> None:
        operator._restored = []
        start(operator)

    patch.setattr(AsyncWaitOperator, "open", without)


def restores_the_highest_watermark(patch: Patch) -> None:
    restore = WatermarkTracker.restore

    def highest(tracker: WatermarkTracker, states: dict[str, list[EventTimeState]]) -> None:
        for found in states.values():
            known = [state.watermark for state in found if state.watermark is not None]
            found[:] = [replace(state, watermark=max(known, default=None)) for state in found]
        restore(tracker, states)

    patch.setattr(WatermarkTracker, "restore", highest)


def loses_evicted_entries(patch: Patch) -> None:
    patch.setattr(RowStore, "read", lambda *_: MISSING)


# ---- sources


class _Live(list[Any]):
    source: SourceInput


def captures_positions_late(patch: Patch) -> None:
    capture, write = SourceInput.capture, TaskSnapshotWriter.write_state

    def live(source: SourceInput, number: int) -> list[list[Any]]:
        found = _Live(capture(source, number))
        found.source = source
        return found

    async def late(
        writer: TaskSnapshotWriter, snapshot: Any, offload: Any, after_slice: Any
    ) -> Any:
        for _ in range(3):  # records pass meanwhile
            await offload(lambda: None)
        for uid, small in snapshot.small.items():
            if isinstance(small, _Live):
                snapshot.small[uid] = small.source.snapshot()
        return await write(writer, snapshot, offload, after_slice)

    patch.setattr(SourceInput, "capture", live)
    patch.setattr(TaskSnapshotWriter, "write_state", late)


def assigns_splits_on_request(patch: Patch) -> None:
    patch.setattr(SplitAssigner, "initial_splits", lambda _: iter(()))


# ---- batch mode


def emits_running_results(patch: Patch) -> None:
    patch.setattr(registry, "_FINAL", {})


def continues_batch_jobs(patch: Patch) -> None:
    def in_runtime_mode(graph: JobGraph, config: JobConfig) -> tuple[JobGraph, JobConfig]:
        graph, prepared = batch_mode.in_runtime_mode(graph, config)
        mode = CheckpointingMode.EXACTLY_ONCE
        return graph, replace(prepared, checkpointing_mode=mode)

    patch.setattr(run_program, "in_runtime_mode", in_runtime_mode)
    patch.setattr(jobmanager, "checkpoint_interval", lambda config, settings: 0.02)


# ---- partial recovery


def _restarts_single_tasks(patch: Patch) -> None:
    """Let all programs restart single tasks, and send records by their keys only, twice."""
    patch.setattr(settings, "RestartScope", [RestartScope.TASK])
    build = FiniteJob.build

    def build_by_key(self: FiniteJob, env: StreamExecutionEnvironment, fuse: bool) -> None:
        build(replace(self, spread="", apart="keyed"), env, fuse)

    patch.setattr(FiniteJob, "build", build_by_key)


def processes_again(patch: Patch) -> None:
    """Process the records again that restarted tasks send again."""
    _restarts_single_tasks(patch)
    restarts = ResumableChannel.sender_restarts

    def sender_restarts(self: ResumableChannel, number: int, caught_up: Callable[[], None]) -> None:
        restarts(self, number, caught_up)
        self.repeated = 0

    patch.setattr(ResumableChannel, "sender_restarts", sender_restarts)


def counts_from_aborted(patch: Patch) -> None:
    """Count from the newest barrier, although its snapshot was aborted."""
    _restarts_single_tasks(patch)
    restarts = ResumableChannel.sender_restarts

    def sender_restarts(self: ResumableChannel, number: int, caught_up: Callable[[], None]) -> None:
        restarts(self, [*self._taken_at][-1], caught_up)

    patch.setattr(ResumableChannel, "snapshot_aborted", lambda self, number: None)
    patch.setattr(ResumableChannel, "sender_restarts", sender_restarts)


def repeats_no_steps(patch: Patch) -> None:
    """Let restarted tasks take their input in any order, although others continue behind them."""
    _restarts_single_tasks(patch)
    begin = TaskSteps.__init__

    def begin_without(
        self: TaskSteps,
        log: StepLog,
        to_repeat: list[Step],
        wall_clock: Callable[[], int],
        repeated: Callable[[], None],
    ) -> None:
        begin(self, log, (), wall_clock, repeated)
        if to_repeat:
            repeated()

    patch.setattr(TaskSteps, "__init__", begin_without)


def repeats_no_times(patch: Patch) -> None:
    """Let functions read the present time while their task repeats steps."""
    _restarts_single_tasks(patch)
    patch.setattr(TaskSteps, "now", lambda self: self._wall_clock())


def asks_again(patch: Patch) -> None:
    """Let restarted tasks ask again for results that tasks behind them have already."""
    _restarts_single_tasks(patch)
    build = FiniteJob.build

    def build_unordered(self: FiniteJob, env: StreamExecutionEnvironment, fuse: bool) -> None:
        choices = replace(self.choices, mutable=True, hook=False)  # by key, and without an order
        build(replace(self, choices=choices), env, fuse)

    patch.setattr(FiniteJob, "build", build_unordered)
    patch.setattr(RepeatableResults, "repeat", lambda self, places, results: None)


#: Shapes whose only shuffle sends records by their keys.
BY_KEY = ("states", "event timers")

MUTANTS = {
    "duplicates": Mutant(
        "A task processes records again that restarted tasks send again.",
        processes_again,
        EXACT,
        BY_KEY,
        ("kill",),
    ),
    "aborted barrier": Mutant(
        "A task drops as many records as it has taken since an aborted snapshot.",
        counts_from_aborted,
        EXACT,
        BY_KEY,
        ("kill",),
    ),
    "steps": Mutant(
        "A restarted task takes its input in another order, although others continue behind it.",
        repeats_no_steps,
        EXACT,
        BY_KEY,
        ("kill",),
    ),
    "times of steps": Mutant(
        "A restarted task registers its timers for other times than before.",
        repeats_no_times,
        EXACT,
        ("timers",),
        ("kill",),
    ),
    "results": Mutant(
        "A restarted task asks again for results that others have already.",
        asks_again,
        EXACT,
        ("requests",),
        ("kill",),
    ),
    "early broadcast": Mutant(
        "A task sends a barrier on before it has it on all channels.", broadcasts_early, EXACT
    ),
    "no alignment": Mutant(
        "A task takes records from behind a barrier before the cut.", never_blocks, EXACT
    ),
    "unaligned end": Mutant(
        "With at least once, the last snapshot of a job is not aligned.", never_aligns, AT_LEAST
    ),
    "back-edge log": Mutant("The logs of back-edges are lost.", drops_back_edge_logs, EXACT),
    "channel log": Mutant(
        "The logs of records that barriers overtake are lost.", drops_channel_logs, UNALIGNED
    ),
    "replay": Mutant(
        "Logs are replayed on the first channel of their edge.",
        replays_on_the_first_channel,
        UNALIGNED,
        ("source windows",),
        ("kill", "delay"),
    ),
    "fsync": Mutant("A manifest is published without a sync.", skips_fsync),
    "fence": Mutant(
        "A JobManager does not check that it has the lock.", is_not_fenced, faults=("pause",)
    ),
    "lease": Mutant("Retention ignores that a snapshot is read.", ignores_leases),
    "manifest first": Mutant(
        "A manifest is published before the files of one task.", publishes_before_all_files
    ),
    "early commit": Mutant("Output is published before its manifest.", commits_early),
    "aborted commit": Mutant("The output of aborted snapshots is published.", commits_aborted),
    "savepoint commits": Mutant(
        "A savepoint publishes the output up to it.", commits_savepoints, faults=("savepoint",)
    ),
    "savepoint at once": Mutant(
        "A savepoint is complete before its output is published.",
        publishes_savepoints_at_once,
        faults=("savepoint",),
    ),
    "output of savepoints": Mutant(
        "The output up to a savepoint is forgotten.",
        forgets_output_of_savepoints,
        faults=("savepoint",),
    ),
    "pending output": Mutant(
        "Output that waits in a restored manifest is not published.", forgets_pending_output
    ),
    "timers": Mutant("Timers are not restored.", restores_no_timers),
    "key groups": Mutant("Two subtasks restore the same key groups.", restores_groups_twice),
    "lost slot": Mutant(
        "Two subtasks restore the key groups of a lost slot.",
        restores_groups_twice,
        faults=("slot",),
    ),
    "requests": Mutant("Requests in flight are not repeated.", repeats_no_requests),
    "watermark": Mutant(
        "The highest watermark of the old subtasks is restored, and not the lowest.",
        restores_the_highest_watermark,
        shapes=("source windows",),
    ),
    "evicted entries": Mutant(
        "State that was evicted from memory is lost.", loses_evicted_entries, EXACT, ("sliding",)
    ),
    "late position": Mutant(
        "The position of a source is read after the barrier.", captures_positions_late
    ),
    "splits": Mutant(
        "A task reads before it knows all its splits.",
        assigns_splits_on_request,
        EXACT,
        ("source windows",),
    ),
    "running results": Mutant("Batch mode emits results early.", emits_running_results, BATCH),
    "batch snapshots": Mutant(
        "Batch jobs go on from snapshots in their middle.", continues_batch_jobs, BATCH
    ),
}


def caught_by(result: CaseResult) -> str:
    """Return which checks have found a case wrong."""
    checks = {
        "invariant": result.violations,
        "crash": result.crashes,
        "lost": result.lost,
        "doubled": result.doubled and not result.repeats,
        "late": result.late,
        "hung": result.hung,
    }
    found = [check for check, wrong in checks.items() if wrong]
    detail = result.violations[:1] or [str(error).split("\n")[0] for error in result.crashes[:1]]
    return ", ".join(found) + (f" ({detail[0][:90]})" if detail else "")


def _search(name: str, seeds: int) -> tuple[str, int | None, str]:
    logging.disable(logging.CRITICAL)
    found = MUTANTS[name].first_wrong(range(seeds))
    return (name, None, "") if found is None else (name, found[1], caught_by(found[0]))


def main() -> int:
    """Look for each mutant; return 1 if one is not caught."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation.engine_mutants")
    parser.add_argument("--seeds", type=int, default=SEEDS, help=f"for each mutant ({SEEDS})")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("mutants", nargs="*", help="their names (all)")
    options = parser.parse_args()
    names, began, missed = options.mutants or list(MUTANTS), time.monotonic(), 0
    print(f"{'mutant':17}{'seeds':>6}  {'caught by':40}", flush=True)
    with ProcessPoolExecutor(options.processes) as pool:
        for done in as_completed([pool.submit(_search, name, options.seeds) for name in names]):
            name, seeds, check = done.result()
            missed += seeds is None
            print(f"{name:17}{seeds or '-':>6}  {check or 'NOT CAUGHT':40}", flush=True)
    print(f"{len(names) - missed} of {len(names)} caught in {time.monotonic() - began:.0f} s")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
