"""Prepares the sources of a program before its job is started.

Some sources need resources that only the program's process has, such as a Spark session. Such a
source does its work here, and writes the result to its own folder inside the job's folder.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from penstock.dataflow.errors import GraphError, StoreError
from penstock.dataflow.graph.compile import compile_graph
from penstock.dataflow.program import Program, RunOptions
from penstock.dataflow.source import Preparation, Source
from penstock.snapshot.coordination.restore_decision import NEWEST
from penstock.snapshot.metadata.manifest import Manifest, SnapshotNumber
from penstock.snapshot.storage.filesystem.temporary_folder import TemporaryFolder
from penstock.snapshot.storage.job_paths import JobPaths
from penstock.snapshot.storage.store import Store


@contextmanager
def prepared_sources(
    program: Program, options: RunOptions, *, attached: bool = True
) -> Iterator[None]:
    """Prepare the sources of a program that need it, and release them after the block.

    Arguments:
        program: the program with the sources.
        options: the options of the run.
        attached: whether the block lasts until the job has ended.

    Raises:
        GraphError: if a source cannot be prepared for this program.
    """
    sources = _sources_to_prepare(program)
    with ExitStack() as stack:
        if sources:
            root = _root(program, attached, stack)
            resumed = _resumed(root, options.resume)
            if resumed is not None:
                _require_uids(resumed, program, sources)
            for uid, source in sources.items():
                # `release` is registered first, so that it is called even if `prepare` fails.
                stack.callback(source.release)
                state: Any = None if resumed is None else resumed.enumerators.get(uid)
                source.prepare(
                    Preparation(
                        JobPaths(root).source(uid),
                        options.resume is not None,
                        attached,
                        None if state is None else state["enumerator"],
                    )
                )
        yield


def _sources_to_prepare(program: Program) -> dict[str, Source]:
    """Return the sources whose class overrides `prepare`, by the operator's uid."""
    plan = compile_graph(program.graph, program.config)
    functions = {operator.id: operator.function for operator in program.graph.operators}
    found: dict[str, Source] = {}
    for chain in plan.chains:
        source = functions[chain.root.operator.id]
        if not isinstance(source, Source) or type(source).prepare is Source.prepare:
            continue
        if any(source is other for other in found.values()):
            raise GraphError(
                f"one {type(source).__name__} is given to two operators: make one for each, or "
                f"read it once and use the stream twice"
            )
        found[chain.root.operator.uid] = source
    return found


def _require_uids(resumed: Manifest, program: Program, sources: Mapping[str, Source]) -> None:
    """Raise `GraphError` if a source was renamed whose data is kept under its uid."""
    plan = compile_graph(program.graph, program.config)
    for old, new in plan.former_uids.items():
        if new in sources and old in resumed.enumerators:
            raise GraphError(
                f"the source {new!r} keeps its data in the job's folder under its former uid "
                f"{old!r}: give it that uid back"
            )


def _resumed(root: Path, request: str | int | None) -> Manifest | None:
    """Return the manifest of the snapshot that the run resumes from, or None.

    The JobManager checks later whether the job may resume from this snapshot.
    """
    if request is None:
        return None
    paths, number = JobPaths(root), None
    if isinstance(request, int):
        number = SnapshotNumber(request)
    elif request != NEWEST:
        paths, number = JobPaths.locate(Path.cwd() / request)
    store = Store(paths.root)
    try:
        return store.newest() if number is None else store.load(number)
    except StoreError:
        return None  # the JobManager will find and report the same error


def _root(program: Program, attached: bool, stack: ExitStack) -> Path:
    """Return the job's folder, or a temporary folder if the job keeps no snapshots."""
    if program.config.snapshot_store is not None:
        raise GraphError(
            "a source of the job keeps its data in the job's folder, which an object store does "
            "not hold: give a folder with --checkpoint-dir"
        )
    if program.config.checkpoint_dir is not None:
        root = Path.cwd() / program.config.checkpoint_dir
        # The folder is checked here, since sources write into it before the JobManager opens it.
        Store(root).require_usable(program.config.name)
        return root
    if not attached:
        raise GraphError(
            "a source of the job keeps something in the job's folder, and the job has none: give "
            "a folder with --checkpoint-dir"
        )
    return stack.enter_context(TemporaryFolder("sources")).path
