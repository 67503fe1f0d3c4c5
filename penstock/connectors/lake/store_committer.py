"""Publish rows of a table in an object store: put data files, then commit to the log.

Writers stage data files in the job's folder, as `ObjectStoreSink` does. The committer puts them
under their final names. The rows belong to the table only once its log has the names. So the log
alone decides whether a snapshot is published, and there is no lock.
"""

from __future__ import annotations

from typing import Any

from penstock.connectors.lake.lake_committers import snapshot_of
from penstock.connectors.lake.table_log import LakeTable, NewFile, TableLog, require_not_ahead
from penstock.connectors.object_store.merged_files import Merger
from penstock.connectors.object_store.object_sink import ObjectCommitter, StagedObject
from penstock.dataflow.sink import Committable, Committer, CommitterContext
from penstock.object_store import ObjectStore


class StoreCommitter(Committer):
    """Appends rows to a table in an object store.

    Arguments:
        table: the table.
        log: the log of the table.
        store: the place of the table.
    """

    def __init__(self, table: LakeTable, log: TableLog[Any], store: ObjectStore) -> None:
        self._table, self._log, self._store = table, log, store
        self._objects = ObjectCommitter(store, Merger())
        self._context: CommitterContext | None = None
        #: Whether this process has not begun to publish.
        self._checks = True

    def open(self, context: CommitterContext) -> None:
        """Set the run, which says where staged files are."""
        self._context = context
        self._objects.open(context)

    def commit(self, committables: list[Committable]) -> None:
        """Put the staged files that the log does not have, and commit them in one transaction.

        Raises:
            JobError: if a staged file is missing or was changed, if the table was replaced by
                another, or if the store cannot be written.
        """
        sinks = dict.fromkeys((c.lineage, c.uid) for c in committables)
        for sink in sinks:
            mine = [c for c in committables if (c.lineage, c.uid) == sink]
            for item in mine:
                self._objects.checked(item)

            def files(since: int, mine: list[Committable] = mine) -> list[NewFile]:
                return [self._put(item) for item in mine if item.snapshot > since]

            self._log.append(snapshot_of(mine), [c.payload["table"] for c in mine], files)
            for item in mine:
                self._objects.staged(item.payload["staged"]).unlink(missing_ok=True)

    def clean(self, lineage: str, uid: str, before_attempt: int) -> int:
        """Remove staged files that no snapshot has, unless another run is ahead."""
        if self._checks:
            # The process may have published more since: this is for its start.
            require_not_ahead(self._log, self._context, lineage, uid)
            self._checks = False
        return self._objects.clean(lineage, uid, before_attempt)

    def _put(self, item: Committable) -> NewFile:
        payload: Any = item.payload
        name, path = payload["target"], self._objects.staged(payload["staged"])
        key = f"{self._store.prefix}/{name}".lstrip("/")
        self._objects.put(StagedObject(key, item.snapshot, [path], [payload]))
        return NewFile(path, payload["folder"], name)
