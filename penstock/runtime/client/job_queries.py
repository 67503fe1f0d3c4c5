"""Query the state of a job of this program: `JobQueries`."""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from penstock.dataflow.errors import GraphError, JobError, StoreError
from penstock.dataflow.job_client import StateAnswer
from penstock.runtime.control.state_queries import StateQuery
from penstock.saved.snapshot import open_snapshot
from penstock.saved.state_requests import (
    StateRequest,
    key_text,
    read_from_answer,
    read_from_snapshot,
)


class JobQueries:
    """Queries the keyed state of one job, in its newest snapshot or in its running tasks.

    Arguments:
        folder: the checkpoint folder of the job; None if it has none.
        send: sends a query to the JobManager, which answers with an event.
    """

    def __init__(self, folder: str | None, send: Callable[[StateQuery], None]) -> None:
        self._folder, self._send = folder, send
        self._lock = threading.Lock()
        self._open: dict[str, tuple[StateRequest, Future[StateAnswer]]] = {}
        self._over = False

    def ask(
        self,
        operator: str,
        state: str,
        key: Any,
        prefix: str | None,
        top: int | None,
        by: str,
        limit: int,
        live: bool,
    ) -> Future[StateAnswer]:
        """Return a future of entries of a state; see `JobClient.query_state`."""
        text = None if key is None else key_text(key)
        request = StateRequest(operator, state, text, prefix, top, by, limit)
        return self._ask_tasks(request) if live else self._ask_snapshot(request)

    def _ask_snapshot(self, request: StateRequest) -> Future[StateAnswer]:
        answer: Future[StateAnswer] = Future()
        if self._folder is None:
            raise StoreError(
                "the job has no checkpoint folder, and so no snapshot to read: call "
                "set_checkpoint_storage_dir, or ask with live=True"
            )
        with open_snapshot(self._folder) as snapshot:
            entries, more = read_from_snapshot(snapshot, request)
            age = max(0.0, time.time() - snapshot.manifest.created_ms / 1000)
            answer.set_result(StateAnswer(entries, False, snapshot.number, round(age, 3), more))
        return answer

    def _ask_tasks(self, request: StateRequest) -> Future[StateAnswer]:
        answer: Future[StateAnswer] = Future()
        query = StateQuery(secrets.token_hex(8), **request.fields())
        with self._lock:
            if self._over:
                raise JobError("the job has ended, and answers no live query")
            self._open[query.id] = request, answer
        self._send(query)
        return answer

    def answered(self, event: dict[str, Any]) -> None:
        """Take an answer of the JobManager. Answers to other clients are ignored."""
        with self._lock:
            request, answer = self._open.pop(event["id"], (None, None))
        if request is None or answer is None:
            return
        if event["problem"]:
            answer.set_exception(GraphError(event["reason"]))
            return
        try:
            entries, more = read_from_answer(event, request)
        except Exception as error:
            answer.set_exception(error)
        else:
            answer.set_result(StateAnswer(entries, True, None, None, more))

    def end(self) -> None:
        """Refuse the open queries, because the job has ended."""
        with self._lock:
            self._over = True
        self.refuse("the job has ended, and answers no live query")

    def refuse(self, reason: str) -> None:
        """Refuse the open queries, because their JobManager has ended."""
        with self._lock:
            left, self._open = self._open, {}
        for _, answer in left.values():
            answer.set_exception(JobError(reason))
