"""Start a harness, with or without a snapshot, and take snapshots of it."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import replace
from typing import Any, Literal, Self

from penstock.dataflow.errors import GraphError
from penstock.runtime.control.job_code import JobCode, pack, unpack
from penstock.runtime.jobmanager.snapshots.record_classes import RecordClasses
from penstock.runtime.jobmanager.snapshots.restored_snapshot import RestoredSnapshot
from penstock.runtime.jobmanager.snapshots.snapshot_publisher import operator_entries
from penstock.runtime.serialization.type_registry import TypeRegistry
from penstock.snapshot.coordination.compatibility import require_compatible
from penstock.snapshot.coordination.graph_compatibility import compare_graph
from penstock.snapshot.coordination.renamed_operators import with_present_uids
from penstock.snapshot.metadata.manifest import Manifest, SnapshotNumber
from penstock.snapshot.protocols.events import SnapshotKind
from penstock.snapshot.storage.job_paths import JobPaths
from penstock.testing.harness.harness_program import compiled
from penstock.testing.harness.harness_snapshot import HarnessFolder, HarnessSnapshot
from penstock.testing.harness.harness_tasks import HarnessTasks


class HarnessLifecycle:
    """The part of a harness that starts, restores and closes its tasks.

    Arguments:
        code: the program, with its execution graph.
        snapshot: the snapshot to start from, or None.
    """

    def __init__(
        self, code: JobCode, snapshot: HarnessSnapshot | None, *, allow_dropped: bool = False
    ) -> None:
        self._begin(code, snapshot, allow_dropped=allow_dropped)

    @classmethod
    def restore(cls, snapshot: HarnessSnapshot, parallelism: int | None = None) -> Self:
        """Return a harness of the same program that starts from a snapshot.

        Arguments:
            snapshot: the snapshot.
            parallelism: the number of subtasks. With None, it is the same as in the snapshot.

        Raises:
            GraphError: if a function of the program cannot be sent to another process.
        """
        if snapshot.code is None:
            raise GraphError(
                "the functions of this harness cannot be copied, so its snapshots are restored "
                "with OperatorHarness(function, ..., snapshot=snapshot)"
            )
        harness = cls.__new__(cls)
        harness._begin(compiled(unpack(snapshot.code), parallelism), snapshot)
        return harness

    def _begin(
        self, code: JobCode, snapshot: HarnessSnapshot | None, *, allow_dropped: bool = False
    ) -> None:
        assert code.plan is not None
        self._copy = _packed(code, needed=code.plan.slots > 1)
        self._folder = HarnessFolder() if snapshot is None else snapshot.folder
        self._classes = RecordClasses(code.types)
        self._types = TypeRegistry(code.types)
        self._number = 0 if snapshot is None else snapshot.number
        if snapshot is not None:
            manifest = with_present_uids(snapshot.manifest, code.plan.former_uids)
            snapshot = replace(snapshot, manifest=manifest)
            _require_fitting(code, snapshot.manifest, allow_dropped=allow_dropped)
            self._classes.restore(snapshot.manifest)
            self._types = self._types.extending(snapshot.manifest.types)
        several = code.plan.slots > 1
        handles: list[dict[str, list[Any]]] = []
        if snapshot is not None:
            restored = RestoredSnapshot(snapshot.manifest, JobPaths(self._folder.path))
            handles = [restored.handles_for(code.plan, slot) for slot in range(code.plan.slots)]
        self._tasks = HarnessTasks(
            code,
            self._copy if several else None,
            self._folder,
            self._number,
            self._types,
            None if snapshot is None else snapshot.number,
            allow_dropped=allow_dropped,
            handles=handles,
        )
        self._watermarks = Counter[int]()
        if snapshot is not None:
            self._tasks.set_time(snapshot.processing_time)
        self._tasks.start()

    # ---- snapshots

    def snapshot(self) -> HarnessSnapshot:
        """Take a snapshot, from which `restore` starts another harness. This harness continues."""
        self._number += 1
        self._tasks.begin_snapshot(self._number)
        acknowledged = self._tasks.snapshots
        indices = [index for index, _ in enumerate(self._types.schemas())]
        self._classes.record_written(indices)
        manifest = Manifest(
            job="harness",
            lineage="harness",
            parent=None,
            number=SnapshotNumber(self._number),
            kind=SnapshotKind.CHECKPOINT,
            created_ms=time.time_ns() // 1_000_000,
            attempt=0,
            version="",
            fingerprint="",
            operators=tuple(operator_entries(self._tasks.plan)),
            handles=acknowledged.handles,
            committables=acknowledged.committables,
            types=self._classes.schemas(),
            sizes=acknowledged.size,
        )
        return HarnessSnapshot(manifest, self._folder, self._copy, self._tasks.now)

    # ---- the end

    def close(self) -> None:
        """Close the functions, without ending the input."""
        self._tasks.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> Literal[False]:
        self.close()
        return False


def _packed(code: JobCode, *, needed: bool) -> bytes | None:
    """Return the code as bytes; None if it cannot be pickled and this is not needed."""
    try:
        return pack(code)
    except GraphError:
        if needed:
            raise
        return None


def _require_fitting(code: JobCode, manifest: Manifest, *, allow_dropped: bool) -> None:
    """Raise `GraphError` if a program cannot be started from a snapshot."""
    assert code.plan is not None
    edges = [(one.producer, one.consumer, one.input, one.partitioning) for one in code.plan.links]
    differences = compare_graph(manifest, operator_entries(code.plan), edges)
    differences += RecordClasses(code.types).differences(manifest)
    require_compatible(differences, allow_dropped=allow_dropped)
