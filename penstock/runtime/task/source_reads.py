"""Log from which split each batch of a source comes, and repeat the order after a restart.

A task that reads several splits in turns takes them in an order that depends on when each of them
has records. Its records decide on all else that it sends, as in every task that only maps and
filters. So its log has the splits and the numbers of their records, and no clocks or watermarks
(`penstock.runtime.network.step_logs`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from penstock.dataflow.errors import ProtocolError
from penstock.runtime.network.step_logs import BARRIER, READ, Step, StepLog


@dataclass
class _Run:
    """Records of one split that come before those of another one."""

    split: str
    count: int


class SourceReads:
    """The reads of one source task. The records for side outputs count, too.

    Arguments:
        log: the log of the task.
        to_repeat: the steps that its predecessor has done behind the barrier of the restored
            snapshot, as far as others depend on them.
        repeated: called when all of them are repeated.
    """

    def __init__(
        self, log: StepLog, to_repeat: Iterable[Step], repeated: Callable[[], None]
    ) -> None:
        self._log, self._repeated = log, repeated
        self._barrier = -1
        self._left: deque[_Run] = deque()
        #: Whether steps are repeated, so that their end must be reported.
        self._repeats = False
        for step in to_repeat:
            self._repeats = True
            log.append(step)
            if step[0] != READ:
                continue
            _, split, count = step
            if self._left and self._left[-1].split == split:
                self._left[-1].count += count
            else:
                self._left.append(_Run(split, count))

    def barrier(self, number: int) -> None:
        """Log that the task takes snapshot `number`, unless that is logged already."""
        if number > self._barrier:
            self._barrier = number
            self._log.append([BARRIER, number])

    @property
    def turn(self) -> str | None:
        """The id of the split that must be read next; None if any may be."""
        return self._left[0].split if self._left else None

    def limit(self, split: str) -> int | None:
        """Return how many records of a split may come at once; None if there is no limit."""
        return next((run.count for run in self._left if run.split == split), None)

    def taken(self, split: str, count: int) -> None:
        """Log that the task has read `count` records of a split, or repeat that.

        Raises:
            ProtocolError: if the predecessor has read another split before the last of them.
        """
        if self._left:
            run = self._left[0]
            more = count - run.count
            if run.split != split or (more > 0 and len(self._left) > 1):
                raise ProtocolError(
                    f"{count} records of split {split!r} were read at once, and {run.count} of "
                    f"split {run.split!r} before the restart: the source is not deterministic"
                )
            run.count -= count
            if run.count <= 0:
                self._left.popleft()
            count = more
        if count > 0:
            self._log.append([READ, split, count])
        self.report()

    def report(self) -> None:
        """Report once that all steps are repeated, if that is so."""
        if self._repeats and not self._left:
            self._repeats = False
            self._repeated()
