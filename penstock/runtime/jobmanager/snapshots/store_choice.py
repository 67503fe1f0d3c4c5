"""Choose the snapshot store of a job: its folder, or an object store with the folder as a copy."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from penstock.dataflow.config import JobConfig
from penstock.dataflow.graph.execution_graph import ExecutionGraph
from penstock.dataflow.sink import Sink
from penstock.runtime.control.job_code import JobCode
from penstock.runtime.jobmanager.reporting.job_events import Note
from penstock.runtime.jobmanager.snapshots.pending_commits import sinks_of
from penstock.snapshot.storage.job_paths import JobPaths
from penstock.snapshot.storage.objects.mirrored_store import MirroredStore
from penstock.snapshot.storage.objects.obstore_objects import ObstoreObjects
from penstock.snapshot.storage.store import Store

#: The longest time for which a failed request is repeated, in seconds.
_RETRY_SECONDS = 60.0


def open_store(root: Path, config: JobConfig) -> Store:
    """Return the snapshot store of a job.

    A folder that is the copy of an object store stays one, even if the settings do not name it.

    Arguments:
        root: the job's checkpoint folder.
        config: the settings of the job.

    Raises:
        GraphError: if the package for object stores is missing, or the URL is wrong.
    """
    url, origin = config.snapshot_store, JobPaths(root).origin
    if url is None and origin.is_file():
        url = origin.read_text()
    if url is None:
        return Store(root)
    # The requests of a snapshot are repeated within the time that a snapshot may take.
    seconds = min(_RETRY_SECONDS, config.checkpoint_timeout_seconds / 2)
    objects = ObstoreObjects(url, retry_seconds=seconds, timeout_seconds=max(1.0, seconds))
    return MirroredStore(root, objects)


def note_local_output(code: JobCode, plan: ExecutionGraph, observe: Callable[[Note], None]) -> None:
    """Say so if sinks stage output in the job's folder, although snapshots are in an object store.

    Arguments:
        code: the job's code, with its configuration.
        plan: the execution graph.
        observe: called with the note.
    """
    if code.config.snapshot_store is None:
        return
    sinks = sinks_of(code, plan)
    names = [repr(info.name) for info in plan.operators if _stages_here(sinks.get(info.uid))]
    if names:
        observe(
            Note(
                f"output of {', '.join(names)} waits for its snapshot in the job's folder, and not "
                f"in {code.config.snapshot_store}: on another machine, the job is refused if this "
                f"output was not published yet"
            )
        )


def _stages_here(sink: Sink | None) -> bool:
    return sink is not None and sink.stages_in_job
