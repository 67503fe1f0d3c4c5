"""Record what the next JobManager must know of a worker. Sans-IO.

If the JobManager of a supervised job dies, its workers continue. The next JobManager knows only the
newest snapshot. `AttemptRecord` observes the messages between a worker and its JobManager, and has
everything that the dead JobManager knew beyond that snapshot.
"""

from __future__ import annotations

import hashlib
from typing import Any

from penstock.runtime.control import messages as m
from penstock.runtime.system.launcher import WorkerSpec


class AttemptRecord:
    """Records the part of an attempt's state that its JobManager has in memory.

    Arguments:
        spec: the specification of the worker.
    """

    def __init__(self, spec: WorkerSpec) -> None:
        self._spec = spec
        #: Whether the worker has reported a failure. It must not be taken over.
        self.failed = False
        self._code = self._plan = b""
        self._types: list[Any] = []
        self._started = self._loop_ends = False
        self._completed = self._newest = 0
        self._pending: dict[int, str] = {}
        self._splits: list[list[Any]] = []
        self._wanted: set[int] = set()
        self._ended: list[list[int]] = []
        self._outside_ended: list[list[int]] = []

    def received(self, message: m.Message) -> None:
        """Record a message of the JobManager."""
        match message:
            case m.Deploy():
                self._code = hashlib.sha256(message.code).digest()
                self._plan, self._types = message.plan, message.types
            case m.Start():
                self._started = True
            case m.SplitAssigned(chain, _, id, payload, sequence):
                if self._newest:  # earlier splits are in every snapshot of the attempt
                    self._splits.append([sequence, chain, id, payload, self._newest])
                self._wanted.discard(chain)
            case m.NoMoreSplits(chain, _):
                self._wanted.discard(chain)
            case m.Prepare(number, _):
                self._pending.setdefault(number, "")
            case m.Inject(number, kind):
                self._pending[number] = kind
                self._newest = max(self._newest, number)
            case m.Abort(number):
                self._pending.pop(number, None)
            case m.Complete(number):
                self._completed = max(self._completed, number)
                self._pending = {n: kind for n, kind in self._pending.items() if n > number}
                self._splits = [split for split in self._splits if split[-1] >= number]
            case m.EndInput() | m.CloseLoop():
                self._loop_ends = True

    def sent(self, message: m.Message) -> None:
        """Record a message to the JobManager."""
        match message:
            case m.SplitWanted(chain, _):
                self._wanted.add(chain)
            case m.InputEnded(chain, subtask):
                self._ended.append([chain, subtask])
            case m.OutsideEnded(chain, subtask):
                self._outside_ended.append([chain, subtask])
            case m.Failed():
                self.failed = True

    def offer(self, pid: int, address: str) -> m.Rejoin:
        """Return the message that offers the worker's tasks to the next JobManager.

        Arguments:
            pid: the process id of the worker.
            address: the address at which its data channels listen.
        """
        return m.Rejoin(
            self._spec.worker,
            self._spec.attempt,
            pid,
            address,
            self._code,
            self._plan,
            self._types,
            self._started,
            self._completed,
            [[number, kind] for number, kind in sorted(self._pending.items())],
            self._splits,
            sorted(self._wanted),
            self._ended,
            self._outside_ended,
            self._loop_ends,
        )
