"""The JobManager: one job, from its code to its end, over as many attempts as it takes.

It compiles the program, holds the lock on the job's folder, decides what to resume from, runs
attempts (`attempt.py`), asks the restart strategy after each failure, and publishes what sinks
staged. It is a process of its own (`jobprocess.py`), but nothing in here depends on that.
"""

from __future__ import annotations

import contextlib
import pickle
import secrets
from collections.abc import Callable, Hashable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import trio

from penstock.dataflow.config import CheckpointingMode
from penstock.dataflow.errors import GraphError, PenstockError, StoreError
from penstock.dataflow.graph.compile import compile_graph
from penstock.dataflow.graph.job_graph import OperatorKind, Partitioning
from penstock.dataflow.sink import Committable
from penstock.runtime.control.failures import describe
from penstock.runtime.control.job_code import unpack
from penstock.runtime.jobmanager.attempt.execution_attempt import ExecutionAttempt
from penstock.runtime.jobmanager.attempt.split_assigner import input_positions, rescaled
from penstock.runtime.jobmanager.job_settings import JobOutcome, JobSettings
from penstock.runtime.jobmanager.reporting.job_history import JobHistory
from penstock.runtime.jobmanager.reporting.job_metrics import JobMetrics
from penstock.runtime.jobmanager.restart_backoff import DEFAULT, RestartBackoff
from penstock.runtime.jobmanager.snapshots.pending_commits import PendingCommits
from penstock.runtime.jobmanager.snapshots.record_classes import RecordClasses
from penstock.runtime.jobmanager.snapshots.restored_output import take_over_output
from penstock.runtime.system.limits import PROCESS_FILES, require_open_files
from penstock.runtime.system.system import System
from penstock.snapshot.coordination.compatibility import require_compatible
from penstock.snapshot.coordination.graph_compatibility import compare_graph, edges_in_flight
from penstock.snapshot.coordination.restore_decision import (
    Fork,
    FreshStart,
    Refuse,
    RestoreNewest,
    decide_resume,
)
from penstock.snapshot.metadata.committables import needed_numbers, pending_committables
from penstock.snapshot.metadata.handles import OWN_INPUT, OperatorHandle, SnapshotBytes
from penstock.snapshot.metadata.manifest import FORMAT, Manifest, OperatorEntry, SnapshotNumber
from penstock.snapshot.protocols.events import SnapshotKind
from penstock.snapshot.storage.adopted_files import adopt
from penstock.snapshot.storage.confirmed_output import Confirmed
from penstock.snapshot.storage.filesystem.temporary_folder import TemporaryFolder
from penstock.snapshot.storage.job_paths import JobPaths
from penstock.snapshot.storage.ownership import remove_attempts, remove_parent, remove_work
from penstock.snapshot.storage.store import Store
from penstock.version import VERSION

__all__ = ["JobManager"]

#: How many snapshot numbers are reserved at a time; each time is one fsync.
RESERVE = 64
#: How often sinks commit in a job without an interval that hands results to its client.
COMMIT_SECONDS = 0.2


class JobManager:
    """Runs one job.

    Arguments:
        blob: the job's code, packed.
        system: clock, connections, processes, threads.
        options: how to run it.
        observe: called with each event of interest (a plain dict).
        store: for simulations; made from the job's settings otherwise.
    """

    def __init__(
        self,
        blob: bytes,
        system: System,
        options: JobSettings,
        observe: Callable[[dict[str, Any]], None] = lambda _: None,
        store: Callable[[Path], Store] = Store,
    ) -> None:
        self.blob = blob
        self.system = system
        self.observe = observe
        self.code = unpack(blob)
        self.config = self.code.config
        self._compile(frozenset())
        self.keep = (
            self.config.checkpoint_dir is not None
            or self.config.checkpoint_interval_seconds is not None
        )
        self.interval = self.config.checkpoint_interval_seconds
        if self.config.checkpointing_mode is CheckpointingMode.NONE:
            self.interval = None
        if options.collecting and self.interval is None:
            self.interval = COMMIT_SECONDS
            # What is committed while the job runs must not be produced again by a restart, so
            # each commit comes with state, in a temporary folder if need be.
            restart = self.config.restart
            self.keep = self.keep or (restart is not None and restart.kind != "none")
        self._options = options
        self._temporary: TemporaryFolder | None = None
        if self.config.checkpoint_dir is None:
            self._temporary = TemporaryFolder("job")
            root = self._temporary.path
        else:
            root = Path(self.code.folder) / self.config.checkpoint_dir
        self.store = store(root)
        operators = {operator.id: operator for operator in self.code.graph.operators}
        sinks = {
            info.uid: operators[info.id].function
            for info in self.plan.operators
            if info.kind is OperatorKind.SINK
        }
        self._sinks = sinks
        self.commits = PendingCommits(sinks, system.offload, self._record_confirmed)
        self.restore_from: Manifest | None = None
        self.lineage = ""
        self.types = RecordClasses(())
        self._folder = self.store.paths
        self._parent: tuple[str, int] | None = None
        self._own = False
        #: The run is a fork, and keeps the files of its parent's snapshot.
        self._adopted = False
        #: Snapshots with lower numbers are none of this run's; not known before one is restored.
        self._since = 0
        self._history = JobHistory()
        self._attempt: ExecutionAttempt | None = None
        self._stopping = False
        #: It was asked for while no attempt ran.
        self._savepoint_wanted = False
        #: An attempt has begun to process records.
        self._began = False
        #: The newest snapshot of this run.
        self._newest: Manifest | None = None
        #: The last snapshot was taken at the end of all input.
        self._finished = False
        self._stopped_waiting = trio.Event()
        self._tidying = trio.Lock()
        self._storing = trio.Lock()

    async def run(self) -> JobOutcome:
        """Run the job to its end. Raises the `PenstockError` that ended it."""
        offload = self.system.offload
        try:
            # Of each worker: its process, its connection, that of its heartbeat.
            require_open_files(PROCESS_FILES + 4 * self.plan.slots)
            await offload(lambda: self.store.open(self.config.name))
            await offload(self.store.lock)
            try:
                for event in await offload(self._resolve):
                    self.observe(event)
                return await self._run()
            finally:
                with trio.CancelScope(shield=True):
                    await offload(partial(remove_work, self.store.paths))
                    await offload(self.store.unlock)
        finally:
            self.system.transport.close()
            if self._temporary is not None:
                with trio.CancelScope(shield=True):
                    await offload(self._temporary.remove)

    def stop(self) -> None:
        """End the job in order: with a last snapshot, if it keeps any."""
        self._stopping = True
        if self._attempt is not None:
            self._attempt.stop()
        else:
            self._stopped_waiting.set()

    def busy_workers(self) -> list[int]:
        """Workers that live and whose task loop has been silent: a function computes for long."""
        return [] if self._attempt is None else self._attempt.busy_workers()

    def savepoint(self) -> None:
        """Take a snapshot that is never deleted by retention."""
        if self._attempt is not None:
            self._attempt.savepoint()
        else:
            self._savepoint_wanted = True

    def running(self, attempt: ExecutionAttempt) -> None:
        """An attempt has started to process records."""
        self._attempt, self._began = attempt, True
        details = {
            "snapshot": self.restore_from.number if self.restore_from else None,
            "log_records": self.restored_log_records,
            "next_number": attempt.first_snapshot,
        }
        restart = self._history.runs_again(self.system.clock(), details)
        if restart is not None:
            self.observe({"event": "restarted", **restart})
        if self._savepoint_wanted:
            self._savepoint_wanted = False
            attempt.savepoint()
        if self._stopping:
            attempt.stop()

    # ---- resuming

    def _resolve(self) -> list[dict[str, Any]]:
        """Decide what to start from, and check that the program fits it; returns what to tell.

        Runs off the event loop, so it tells nobody itself.
        """
        events: list[dict[str, Any]] = [
            {
                "event": "note",
                "text": f"{operator.name!r} cannot be read again from a position: "
                "after a failure, records of it may be lost",
            }
            for operator in self.code.graph.operators
            if operator.kind is OperatorKind.SOURCE and not operator.function.rewindable
        ]
        self.types = RecordClasses(self.code.types)
        notes: list[str] = []
        request, store = self._options.resume, self.store
        chosen, chosen_store = None, store
        wanted: str | int | Path | None = request
        if isinstance(request, str) and request != "newest":
            path = Path(self.code.folder) / request
            paths, number = JobPaths.locate(path)
            if paths.root == store.paths.root and number is not None:
                wanted = int(number)
            else:
                wanted, chosen_store = path, Store(paths.root)
                chosen = chosen_store.load(number) if number is not None else chosen_store.newest()
                if chosen is None:
                    raise StoreError("there is no snapshot to resume from", path)
        infos = store.list()
        if isinstance(wanted, int) and any(i.number == wanted and i.published for i in infos):
            chosen = store.load(wanted)
        decision = decide_resume(
            wanted,
            infos,
            store.newest() if wanted == "newest" else None,
            fresh_lineage=secrets.token_hex(8),
            fork=self._options.fork,
            chosen=chosen,
            chosen_infos=chosen_store.list() if isinstance(wanted, Path) else (),
        )
        match decision:
            case Refuse(reason):
                raise GraphError(f"{reason} [{store.paths.root}]")
            case FreshStart(lineage):
                self.lineage = lineage
            case RestoreNewest(manifest, lineage):
                self.lineage, self._parent, self._own = lineage, manifest.parent, True
                notes = self._restore(manifest, store)
            case Fork(manifest, lineage, parent, later):
                self.lineage, self._parent = lineage, parent
                self._require_forkable(manifest)
                notes = self._restore(manifest, chosen_store)
                if later:
                    notes.append(
                        "output of the later snapshots "
                        f"{', '.join(map(str, later))} exists and will be produced again"
                    )
        events += [{"event": "note", "text": text} for text in notes]
        events.append({"event": "types", "types": self.types.to_wire()})
        store.clean_debris()
        remove_work(store.paths)
        restored = self.restore_from
        if restored is not None:
            if chosen_store is not store:
                self._folder = adopt(restored, chosen_store.paths, store.paths)
                self._adopted = True
            number = restored.number
            told = {"number": number, "lineage": restored.lineage}
            events.append({"event": "resumed", **told, "log_records": self.restored_log_records})
        return events

    def _require_forkable(self, manifest: Manifest) -> None:
        for entry in manifest.operators:
            sink = self._sinks.get(entry.uid)
            if sink is not None and sink.needs_all_output:
                raise GraphError(
                    f"the sink {entry.uid!r} publishes the whole output of a job at its end, and a "
                    f"fork would lack what was put out up to snapshot {manifest.number}: start the "
                    f"job afresh, or go on from its newest snapshot without --fork"
                )

    def _compile(self, apart: frozenset[tuple[str, str]]) -> None:
        self.plan = compile_graph(self.code.graph, self.config, unchained=apart)
        self.plan_bytes = pickle.dumps(self.plan)
        self.metrics = JobMetrics(self.plan)

    def _restore(self, manifest: Manifest, store: Store) -> list[str]:
        """Take a snapshot to start from; returns what to say about it."""
        # Records in flight need a channel to come back to, also between operators that could be
        # fused now: at another parallelism, or without `disable_chaining()`.
        self._compile(edges_in_flight(manifest))
        edges = [
            (link.producer, link.consumer, link.input, link.partitioning)
            for link in self.plan.links
        ]
        # What a source had in hand goes on in the source.
        edges += [
            (chain.root.operator.uid, chain.root.operator.uid, OWN_INPUT, Partitioning.REBALANCE)
            for chain in self.plan.chains
            if chain.is_source
        ]
        hooks = [
            [node.operator.uid for node in chain.root.walk() if node.operator.has_end_input]
            for chain in self.plan.chains
        ]
        if store is self.store:
            store.require_own(manifest, self.config.name)
        differences = compare_graph(manifest, self._entries(), edges, hooks)
        differences += self.types.differences(manifest)
        require_compatible(differences, allow_dropped=self._options.allow_dropped)
        store.verify(manifest, checksums=True)
        self.restore_from, self._folder = manifest, store.paths
        self.types.restore(manifest)
        dropped = self._options.allow_dropped
        return take_over_output(self.commits, manifest, store, self.store, allow_dropped=dropped)

    def _entries(self) -> list[OperatorEntry]:
        return [
            OperatorEntry(
                info.uid,
                info.name,
                info.kind.value,
                info.parallelism,
                self.plan.max_parallelism,
                stateful=info.kind.keyed or info.kind is OperatorKind.SOURCE,
            )
            for info in self.plan.operators
        ]

    @property
    def restored_log_records(self) -> int:
        """Records in the logs of the snapshot that was restored."""
        handles = self.restore_from.handles if self.restore_from else ()
        return sum(log.records for handle in handles for log in handle.logs)

    def handles_for(self, slot: int) -> dict[str, list[Any]]:
        """What each task of a slot restores: [folder, handle, rescaled] of each handle it needs."""
        manifest = self.restore_from
        if manifest is None:
            return {}
        folder = str(self._folder.snapshot(manifest.number))
        result: dict[str, list[Any]] = {}
        for chain in self.plan.chains:
            if slot >= chain.parallelism:
                continue
            mine: list[Any] = []
            for node in chain.root.walk():
                info = node.operator
                handles = [h for h in manifest.handles if h.uid == info.uid]
                if not handles:
                    continue
                anew = rescaled(manifest, info.uid, info.parallelism)
                if anew:
                    # Begun splits are dealt by the JobManager, keyed state by key group, logs
                    # record by record.
                    handles = [replace(h, small=None) for h in handles]
                else:
                    handles = [h for h in handles if h.subtask == slot]
                mine += [[folder, handle.to_wire(), anew] for handle in handles]
            if mine:
                result[f"{chain.id}:{slot}"] = mine
        return result

    # ---- attempts

    async def _run(self) -> JobOutcome:
        await self.commits.commit()
        if self.restore_from is not None and self.restore_from.finished and self._own:
            self.observe({"event": "note", "text": "the job had already read all of its input"})
            await self.commits.finish(self.lineage)
            return self.outcome()
        strategy = self.config.restart
        if strategy is None:
            strategy = DEFAULT if self.keep and self.interval is not None else None
        restarts = RestartBackoff(strategy)
        while True:
            try:
                if self._history.restart_count:
                    await self._restore_newest()
                numbers = await self.reserve_numbers()
                if not self._own:
                    self._since = self._since or numbers.start
                # Nothing is pending now: what older attempts staged and is still there never
                # came into a snapshot.
                await self.commits.clean(self.lineage, before_attempt=numbers.start)
                await ExecutionAttempt(self, self._history.restart_count, numbers).run()
                if self._finished:
                    await self.commits.finish(self.lineage)
                return self.outcome()
            except PenstockError as error:
                self._attempt = None
                now = self.system.clock()
                decision = restarts.failed(
                    now,
                    error,
                    started=self._began,
                    progress=self._input_read(),
                    snapshot=None if self._newest is None else self._newest.number,
                )
                if decision.reason is not None:
                    self.observe({"event": "giving_up", "reason": decision.reason})
                if decision.delay_seconds is None or self._stopping:
                    raise
                await self._pause(error, decision.delay_seconds, now)
                if self._stopping:
                    return self.outcome()

    def _input_read(self) -> Hashable:
        """Return what changes as long as the job reads on, as far as snapshots hold it."""
        rewindable = all(
            operator.function.rewindable
            for operator in self.code.graph.operators
            if operator.kind is OperatorKind.SOURCE
        )
        if not self.keep:
            return None if rewindable else self._history.restart_count
        newest = self._newest
        if newest is None or not rewindable:
            return newest and newest.number
        return input_positions(newest)

    async def _pause(self, error: PenstockError, delay: float, now: float) -> None:
        """Wait before a restart."""
        cause = str(error)
        self._history.add_restart(cause, delay, now)
        told = {"cause": cause, "delay_seconds": delay, **describe(error)}
        self.observe({"event": "restarting", **told})
        async with trio.open_nursery() as nursery:
            # It may be what fills the disk: what was in flight in a loop, for one.
            remove = partial(remove_attempts, self.store.paths)
            nursery.start_soon(self.system.offload, remove)
            with trio.move_on_after(delay):
                await self._stopped_waiting.wait()

    async def _restore_newest(self) -> None:
        """Publish what is pending, and go back to the newest snapshot of this run."""
        if self.system.revive is not None:
            # Before the commits: they may need what has died, and come before the workers.
            await self.system.offload(self.system.revive)
        await self.commits.commit()
        if self.keep:
            # What links table files keeps their space, also after they are compacted away. But
            # recovering is more urgent: what can't be removed yet is tried again next time.
            with contextlib.suppress(StoreError):
                await self.in_store(self.store.clean_debris)
            newest = await self.in_store(self._newest_own)
            if newest is not None:
                self.restore_from, self._folder = newest, self.store.paths
                self._own = True
                self.commits.add(pending_committables(newest))
                await self.commits.commit()

    def _newest_own(self) -> Manifest | None:
        """The newest snapshot of this run's lineage, with its files checked."""
        newest = self.store.newest(self._since)
        if newest is None or newest.lineage != self.lineage:
            return None
        self.store.verify(newest)
        return newest

    def outcome(self) -> JobOutcome:
        """How the job stands; for its end and its report."""
        return JobOutcome(
            stopped=self._stopping,
            operators=self.metrics.operators(),
            lineage=self.lineage,
            peak_bytes=list(self.metrics.peaks.values()),
            loops=self.metrics.loops(),
            **self._history.figures(),
        )

    # ---- snapshots

    async def in_store(self, call: Callable[[], Any]) -> Any:
        """Have the store do something: one thing at a time, and never abandoned.

        A thread goes on when its caller is cancelled. The manifest of a failed attempt would
        then appear after the next one had looked for the newest snapshot.
        """
        with trio.CancelScope(shield=True):
            async with self._storing:
                return await self.system.offload(call)

    async def _record_confirmed(self, confirmed: Confirmed) -> None:
        if self.keep:
            # If it fails, a resumed job publishes again, which committers recognise.
            with contextlib.suppress(StoreError):
                await self.in_store(partial(self.store.confirm, confirmed))

    async def reserve_numbers(self) -> range:
        """Reserve snapshot numbers durably."""
        return await self.in_store(lambda: self.store.reserve_numbers(RESERVE))  # type: ignore[no-any-return]

    async def publish(
        self,
        number: int,
        kind: SnapshotKind,
        *,
        attempt: int,
        handles: Sequence[OperatorHandle],
        enumerators: dict[str, Any],
        committables: Sequence[Committable],
        size: SnapshotBytes,
        wall_ms: int,
        finished: bool,
    ) -> None:
        """Make a snapshot's manifest durable, and what it stages pending."""
        if self.keep:
            manifest = Manifest(
                job=self.config.name,
                lineage=self.lineage,
                parent=self._parent,
                number=SnapshotNumber(number),
                kind=kind,
                created_ms=wall_ms,
                attempt=attempt,
                version=VERSION,
                fingerprint=self.plan.fingerprint,
                operators=tuple(self._entries()),
                handles=tuple(handles),
                enumerators=enumerators,
                committables=self.commits.for_manifest(committables),
                types=self.types.schemas(),
                sizes=size,
                finished=finished and not self._stopping,
                format=FORMAT,
            )
            await self.in_store(partial(self.store.publish, manifest))
            self._newest = manifest
        self._finished = finished and not self._stopping
        self.commits.add(committables)

    def completed(self, snapshot: dict[str, Any]) -> None:
        """A snapshot is complete. One that holds no state only commits output."""
        if self.keep:
            self._history.add_snapshot(snapshot)
            self.observe({"event": "snapshot", **snapshot})

    async def tidy(self, aborted: Sequence[int]) -> None:
        """Remove what retention no longer keeps, and what given-up snapshots left."""
        if not self.keep:
            return
        async with self._tidying:
            protect = needed_numbers(self.commits.pending)
            for number in aborted:
                await self.in_store(partial(self.store.discard, number))
            await self.in_store(partial(self.store.retain, self.config.retained, protect))
            if self._adopted:
                # There is a snapshot of this run's own now.
                self._adopted = False
                await self.system.offload(partial(remove_parent, self.store.paths))
