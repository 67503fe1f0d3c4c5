"""Decide from which snapshot a run starts, and check that the program fits it.

The rules of the decision are in `penstock.snapshot.coordination.restore_decision`. This module
reads the facts from the store, and prepares the job's folder. Its functions block on files.
"""

from __future__ import annotations

import secrets
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from penstock.dataflow.config.claim_mode import RecoveryClaimMode
from penstock.dataflow.config.snapshot_stores import is_store_url
from penstock.dataflow.errors import GraphError, Recoverability, StoreError
from penstock.dataflow.graph.compile import compile_graph
from penstock.dataflow.graph.execution_graph import ExecutionGraph
from penstock.dataflow.sink import Sink
from penstock.runtime.control.job_code import JobCode
from penstock.runtime.jobmanager.job_settings import JobSettings
from penstock.runtime.jobmanager.reporting.job_events import (
    JobEvent,
    Note,
    RecordClassesKnown,
    Resumed,
)
from penstock.runtime.jobmanager.snapshots.graph_differences import graph_differences
from penstock.runtime.jobmanager.snapshots.pending_commits import PendingCommits
from penstock.runtime.jobmanager.snapshots.record_classes import RecordClasses
from penstock.runtime.jobmanager.snapshots.restored_output import take_over_output
from penstock.runtime.jobmanager.snapshots.restored_snapshot import (
    RestoredSnapshot,
    require_splits,
)
from penstock.runtime.user_code.errors import calling
from penstock.snapshot.coordination.compatibility import Verdict, require_compatible
from penstock.snapshot.coordination.graph_compatibility import edges_in_flight
from penstock.snapshot.coordination.renamed_operators import with_present_uids
from penstock.snapshot.coordination.restore_decision import (
    NEWEST,
    Decision,
    Fork,
    FreshStart,
    Refuse,
    RestoreNewest,
    decide_resume,
    repeated_request,
)
from penstock.snapshot.metadata.manifest import Manifest, SnapshotInfo
from penstock.snapshot.storage.adopted_files import adopt
from penstock.snapshot.storage.claimed_snapshot import claim
from penstock.snapshot.storage.job_paths import JobPaths
from penstock.snapshot.storage.objects.fetched_snapshots import fetch_listing, fetch_snapshot
from penstock.snapshot.storage.ownership import remove_work
from penstock.snapshot.storage.store import Store


@dataclass(frozen=True)
class RestorePlan:
    """The plan for the start of a run.

    Arguments:
        plan: the execution graph. It may have more channels than that of a fresh start, for the
            records in flight of the snapshot.
        types: the record classes, numbered as in the snapshot.
        lineage: the lineage of the run's snapshots.
        parent: the lineage and the number of the snapshot from which the lineage was forked; None
            if it is not a fork.
        restored: the snapshot to start from; None starts from the beginning of the input.
        own: whether the snapshot belongs to the same lineage.
        adopted: whether the files of another job's snapshot were linked or copied into the folder
            of this job.
        staging: the folders in which sinks have staged output: that of this job, and that of the
            other job whose snapshot is restored.
        notes: remarks for the person who started the job.
    """

    plan: ExecutionGraph
    types: RecordClasses
    lineage: str
    parent: tuple[str, int] | None
    restored: RestoredSnapshot | None
    own: bool
    adopted: bool
    staging: tuple[Path, ...]
    notes: tuple[str, ...]

    def events(self) -> Iterator[JobEvent]:
        """Return the events that report the start of the run to the client."""
        yield from map(Note, self.notes)
        yield RecordClassesKnown(self.types.to_wire())
        if self.restored is not None:
            manifest = self.restored.manifest
            log_records = self.restored.log_records
            yield Resumed(manifest.number, manifest.lineage, log_records, self.lineage)


@dataclass(frozen=True)
class _Choice:
    """The snapshot that the client requests.

    Arguments:
        wanted: None, "newest", the number of a snapshot, or the path of a snapshot in another
            job folder.
        manifest: the manifest of the snapshot; None if it was not read yet.
        store: the store that has the snapshot.
    """

    wanted: str | int | Path | None
    manifest: Manifest | None
    store: Store


class RestorePlanner:
    """Plans the start of one run.

    Arguments:
        code: the job's code.
        plan: the execution graph for a fresh start.
        settings: the client's settings, with the snapshot from which to resume, if any.
        store: the store of the job's own folder, which is open and locked.
        sinks: the sinks, keyed by uid.
        commits: receives the output of the restored snapshot that is not published yet.
    """

    def __init__(
        self,
        code: JobCode,
        plan: ExecutionGraph,
        settings: JobSettings,
        store: Store,
        sinks: Mapping[str, Sink],
        commits: PendingCommits,
    ) -> None:
        self._code = code
        self._plan = plan
        self._settings = settings
        self._store = store
        self._sinks = sinks
        self._commits = commits
        self._types = RecordClasses(code.types)

    def open_store(self) -> None:
        """Open the job's store, and refuse a run that does not fit an object store.

        This is found out before the run takes the job over. Otherwise a run that is refused in the
        end would have ended the JobManager of a running job.

        Raises:
            GraphError: if the client's request or the program does not fit the snapshot.
            StoreError: if the store cannot be used, or has snapshots already.
        """
        self._store.open(self._code.config.name)
        newest = self._store.foresee()
        if newest is None or newest.lineage == self._settings.lineage:
            return  # It is new, or a JobManager of this run has been started again.
        request = self._own_snapshot(self._settings.resume)
        if request != NEWEST and not isinstance(request, int):
            start = "the beginning" if request is None else request
            raise StoreError(
                f"the store already holds snapshot {newest.number}: go on from it with --resume, "
                f"or use another prefix to start from {start}",
                self._code.config.snapshot_store,
                recoverability=Recoverability.NON_RECOVERABLE,
            )
        chosen = newest if request == NEWEST else self._store.foresee(int(request))
        known = {one.number: SnapshotInfo(one.number, True) for one in (chosen, newest) if one}
        decision = decide_resume(
            request,
            sorted(known.values(), key=lambda info: info.number),
            newest,
            fresh_lineage=self._settings.lineage,
            fork=self._settings.fork,
            chosen=chosen,
        )
        if isinstance(decision, Refuse):
            raise GraphError(f"{decision.reason} [{self._code.config.snapshot_store}]")
        if chosen is not None:
            self._fitting_plan(self._with_present_uids(chosen))

    def plan(self, *, keep_work: bool = False) -> RestorePlan:
        """Decide from which snapshot the run starts, and prepare the job's folder.

        Arguments:
            keep_work: whether to keep the files of workers and of incomplete snapshots if the run
                continues its own snapshots, since its workers may still use them. The caller must
                call `clean` unless it takes these workers over.

        Raises:
            GraphError: if the client's request or the program does not fit the snapshot.
            StoreError: if the snapshot is missing or damaged.
        """
        notes = self._notes_about_sources()
        choice = self._choose()
        decision = self._decide(choice)
        restored: RestoredSnapshot | None = None
        parent: tuple[str, int] | None = None
        match decision:
            case Refuse(reason):
                raise GraphError(f"{reason} [{self._store.paths.root}]")
            case FreshStart(lineage):
                notes += self._notes_about_output()
            case RestoreNewest(manifest, lineage):
                manifest, parent = self._with_present_uids(manifest), manifest.parent
                restored = RestoredSnapshot(manifest, self._store.paths)
                notes += self._restore(manifest, self._store)
            case Fork(manifest, lineage, parent, later):
                manifest = self._with_present_uids(manifest)
                self._require_forkable(manifest)
                restored = RestoredSnapshot(manifest, choice.store.paths)
                notes += self._restore(manifest, choice.store)
                if later:
                    numbers = ", ".join(map(str, later))
                    notes.append(
                        f"output of the later snapshots {numbers} exists and will be produced again"
                    )
        if not (keep_work and isinstance(decision, RestoreNewest)):
            self.clean()
        adopted = restored is not None and choice.store is not self._store
        claims = self._code.config.claim_mode is RecoveryClaimMode.CLAIM
        if restored is not None and adopted:
            self._store.paths.claimed.unlink(missing_ok=True)  # that of an earlier fork
            own = adopt(restored.manifest, choice.store.paths, self._store.paths)
            if claims:
                claim(self._store.paths, choice.store.paths, restored.manifest.number)
            shutil.rmtree(self._store.paths.fetched, ignore_errors=True)
            restored = RestoredSnapshot(restored.manifest, own)
        return RestorePlan(
            plan=self._plan,
            types=self._types,
            lineage=lineage,
            parent=parent,
            restored=restored,
            own=isinstance(decision, RestoreNewest),
            adopted=adopted,
            staging=tuple(dict.fromkeys((self._store.paths.staging, choice.store.paths.staging))),
            notes=tuple(notes),
        )

    def clean(self) -> None:
        """Remove what earlier runs have left: files of workers, and incomplete snapshots."""
        self._store.clean_debris()
        remove_work(self._store.paths)

    def _notes_about_sources(self) -> list[str]:
        return [
            f"{operator.name!r} is at least once: after a failure, records of it may come twice"
            if operator.function.acknowledges
            else f"{operator.name!r} cannot be read again from a position: "
            "after a failure, records of it may be lost"
            for operator in self._code.graph.operators
            if operator.spec.is_source and not operator.function.rewindable
        ]

    def _notes_about_output(self) -> list[str]:
        """Return a note for each sink that has output, although the job starts from nothing."""
        names = {info.uid: info.name for info in self._plan.operators}
        notes = []
        for uid, sink in self._sinks.items():
            with calling(names[uid], "its earlier output could not be listed"):
                output = sink.earlier_output()
            if output is not None:
                found = f"sink {names[uid]!r} has output already: {output}. If "
                if self._settings.resume is not None:
                    found = f"there is no snapshot to resume from, and {found}"
                notes.append(
                    f"{found}an earlier run of this job wrote it, its records will be there twice; "
                    f"then stop the job, and remove that output first"
                )
        return notes

    def _choose(self) -> _Choice:
        """Find the snapshot that the client requests.

        Raise `StoreError` if it does not exist or cannot be read.
        """
        request, store = self._settings.resume, self._store
        request = repeated_request(request, store.list(), self._settings.lineage)
        if is_store_url(request):
            return self._choose_of_url(str(request))
        request = self._own_snapshot(request)
        if isinstance(request, str) and request != NEWEST:
            path = Path(self._code.folder) / request
            paths, number = JobPaths.locate(path)
            other = Store(paths.root)
            manifest = other.newest() if number is None else other.load(number)
            if manifest is None:
                raise StoreError("there is no snapshot to resume from", path)
            return _Choice(path, manifest, other)
        manifest = None
        if isinstance(request, int):
            store.fetch(request)
            published = {info.number for info in store.list() if info.published}
            manifest = store.load(request) if request in published else None
        return _Choice(request, manifest, store)

    def _own_snapshot(self, request: str | int | None) -> str | int | None:
        """Return the number of a snapshot in the job's own folder, if a request has its path."""
        if isinstance(request, str) and request != NEWEST and not is_store_url(request):
            paths, number = JobPaths.locate(Path(self._code.folder) / request)
            if paths.root == self._store.paths.root and number is not None:
                return int(number)
        return request

    def _choose_of_url(self, url: str) -> _Choice:
        """Copy the newest snapshot of an object store, from which a fork starts."""
        folder = self._store.paths.fetched
        shutil.rmtree(folder, ignore_errors=True)  # An earlier start may have been killed.
        fetch_listing(url, folder)
        other = Store(folder)
        manifest = other.newest()
        if manifest is None:
            raise StoreError("there is no snapshot to resume from", url)
        fetch_snapshot(other.paths, manifest.number)
        return _Choice(Path(url), manifest, other)

    def _decide(self, choice: _Choice) -> Decision:
        store = self._store
        return decide_resume(
            choice.wanted,
            store.list(),
            store.newest() if choice.wanted == NEWEST else None,
            fresh_lineage=self._settings.lineage or secrets.token_hex(8),
            fork=self._settings.fork,
            chosen=choice.manifest,
            chosen_infos=choice.store.list() if isinstance(choice.wanted, Path) else (),
        )

    def _with_present_uids(self, manifest: Manifest) -> Manifest:
        """Return a manifest in which renamed operators have the uids of the program.

        Raise `GraphError` if a sink was renamed that must know all its output.
        """
        renamed = with_present_uids(manifest, self._plan.former_uids)
        before = {entry.uid for entry in manifest.operators}
        for entry in renamed.operators:
            sink = self._sinks.get(entry.uid)
            if sink is not None and sink.needs_all_output and entry.uid not in before:
                raise GraphError(
                    f"the sink {entry.uid!r} publishes the whole output of a job at its end, and "
                    f"keeps it under its former uid until then: give it that uid back"
                )
        return renamed

    def _require_forkable(self, manifest: Manifest) -> None:
        for entry in manifest.operators:
            sink = self._sinks.get(entry.uid)
            if sink is not None and sink.needs_all_output:
                raise GraphError(
                    f"the sink {entry.uid!r} publishes the whole output of a job at its end, and a "
                    f"fork would lack what was put out up to snapshot {manifest.number}: start the "
                    f"job afresh, or go on from its newest snapshot without --fork"
                )

    def _restore(self, manifest: Manifest, store: Store) -> list[str]:
        """Check that the program fits a snapshot, and make its unpublished output pending.

        Return notes for the person who started the job.
        """
        dropped = self._settings.allow_dropped
        if store is self._store:
            store.require_own(manifest, self._code.config.name)
        self._plan = self._fitting_plan(manifest)
        store.verify(manifest, checksums=True)
        require_splits(manifest, store.paths)
        self._types.restore(manifest)
        return take_over_output(self._commits, manifest, store, self._store, allow_dropped=dropped)

    def _fitting_plan(self, manifest: Manifest) -> ExecutionGraph:
        """Return the execution graph for a snapshot.

        Raise `GraphError` if the program does not fit the snapshot.
        """
        # Records in flight must be restored into a channel. So two operators with such records
        # between them are not chained, even if the program now allows it.
        unchained = edges_in_flight(manifest)
        plan = compile_graph(self._code.graph, self._code.config, unchained=unchained)
        differences = graph_differences(plan, manifest)
        differences += self._types.differences(manifest)
        require_compatible(differences, allow_dropped=self._settings.allow_dropped)
        return plan

    def misfit(self, plan: ExecutionGraph, manifest: Manifest) -> str | None:
        """Return why a snapshot of this run cannot be restored into an execution graph.

        Return None if it can. Records on their way to all subtasks of an operator, for example,
        cannot be redistributed.
        """
        return next(
            (
                f"{difference.name!r}: {difference.reason}"
                for difference in graph_differences(plan, manifest)
                if difference.verdict in (Verdict.REFUSED, Verdict.LOST)
            ),
            None,
        )
