"""Answer the queries of state of the HTTP API: `StateReader`."""

from __future__ import annotations

import os
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import trio

from penstock.dataflow.errors import GraphError, PenstockError, StoreError
from penstock.rest.operations import RefusedRequest
from penstock.runtime.control.job_state import JobState
from penstock.saved.entries import UnknownStateError
from penstock.saved.snapshot import SavedSnapshot, open_snapshot
from penstock.saved.state_requests import (
    StateRequest,
    entry_row,
    read_from_answer,
    read_from_snapshot,
)
from penstock.snapshot.storage.job_paths import JobPaths
from penstock.snapshot.storage.store import Store

#: The time for which the newest snapshot of a job stays open after a query, in seconds.
KEPT_SECONDS = 10.0
#: The number of snapshots that stay open.
MAX_KEPT = 20


@dataclass
class _Opened:
    """The newest snapshot of a job, which stays open for the next query.

    A lease keeps the job from removing it.
    """

    root: Path
    snapshot: SavedSnapshot | None = None
    #: A lock that is held by the thread that reads the snapshot.
    reading: trio.Lock = field(default_factory=trio.Lock)
    used: float = 0.0

    def newest(self) -> SavedSnapshot:
        """Return the newest complete snapshot. Raise `StoreError` if there is none."""
        opened = self.snapshot
        if opened is not None and opened.number == max(Store(self.root).published(), default=0):
            return opened
        self.close()
        self.snapshot = open_snapshot(self.root)
        return self.snapshot

    def close(self) -> None:
        """Close the snapshot, and end its lease."""
        opened, self.snapshot = self.snapshot, None
        if opened is not None:
            opened.close()


class StateReader:
    """Reads the state of jobs, in their newest snapshots or in their running tasks."""

    def __init__(self) -> None:
        self._opened: dict[str, _Opened] = {}

    async def run(self) -> None:
        """Close snapshots that are no longer used, until cancelled."""
        try:
            while True:
                await trio.sleep(KEPT_SECONDS / 2)
                await self._close_unused(trio.current_time() - KEPT_SECONDS)
        finally:
            with trio.CancelScope(shield=True):
                await self._close_unused(float("inf"))

    async def _close_unused(self, before: float) -> None:
        for id, opened in list(self._opened.items()):
            if opened.used < before:
                del self._opened[id]
                async with opened.reading:
                    await trio.to_thread.run_sync(opened.close)

    async def names(self, job: JobState) -> dict[str, Any]:
        """Return the states of the newest snapshot of a job.

        Raises:
            RefusedRequest: if the job has no snapshot.
        """

        def read(snapshot: SavedSnapshot) -> list[dict[str, Any]]:
            return [one._asdict() for one in snapshot.states]

        snapshot, states = await self._read(job, read)
        return {**snapshot, "states": states}

    async def saved(self, job: JobState, request: StateRequest) -> dict[str, Any]:
        """Return entries of the newest snapshot of a job.

        Raises:
            RefusedRequest: if there is no snapshot or no such state, or its keys are of another
                type.
        """

        def read(snapshot: SavedSnapshot) -> tuple[list[dict[str, Any]], bool]:
            entries, more = read_from_snapshot(snapshot, request)
            return list(map(entry_row, entries)), more

        snapshot, (entries, more) = await self._read(job, read)
        return {**snapshot, "live": False, "entries": entries, "more": more}

    async def _read(
        self, job: JobState, read: Callable[[SavedSnapshot], Any]
    ) -> tuple[dict[str, Any], Any]:
        folder = job.config.get("checkpoint_dir")
        if folder is None:
            raise RefusedRequest(
                409,
                f"job {job.id} has no checkpoint folder, and so no snapshot to read; ask with "
                f"live=true",
            )
        root = JobPaths(Path(os.fspath(folder))).root
        opened = self._opened.get(job.id)
        if opened is None or opened.root != root:
            opened = self._opened[job.id] = _Opened(root)
            for id in list(self._opened)[:-MAX_KEPT]:
                await self._forget(id)
        opened.used = trio.current_time()

        def work() -> tuple[dict[str, Any], Any]:
            try:
                snapshot = opened.newest()
                found = read(snapshot)
            except BaseException:
                opened.close()
                raise
            age = max(0.0, time.time() - snapshot.manifest.created_ms / 1000)
            return {"snapshot": snapshot.number, "age_seconds": round(age, 3)}, found

        try:
            async with opened.reading:
                return await trio.to_thread.run_sync(work)
        except StoreError as error:
            raise RefusedRequest(409, f"job {job.id} has no snapshot to read: {error}") from error
        except UnknownStateError as error:
            raise RefusedRequest(404, str(error)) from error
        except PenstockError as error:
            raise RefusedRequest(400, str(error)) from error

    async def _forget(self, id: str) -> None:
        opened = self._opened.pop(id)
        async with opened.reading:
            await trio.to_thread.run_sync(opened.close)

    async def live(
        self, request: StateRequest, ask: Callable[[dict[str, Any]], Awaitable[dict[str, Any]]]
    ) -> dict[str, Any]:
        """Return entries that the running tasks of a job have.

        Arguments:
            request: the request.
            ask: passes the fields of a `StateQuery` to the job, and returns the answer.

        Raises:
            RefusedRequest: if the job does not answer, or the keys are of another type.
        """
        answer = await ask(request.fields())
        try:
            entries, more = read_from_answer(answer, request)
        except GraphError as error:
            raise RefusedRequest(400, str(error)) from error
        rows = list(map(entry_row, entries))
        return {
            "snapshot": None,
            "age_seconds": None,
            "live": True,
            "entries": rows,
            "more": more,
        }
