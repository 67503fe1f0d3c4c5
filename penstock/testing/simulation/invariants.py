"""Check after each step of a simulated run what must hold at any time.

* The numbers of complete snapshots grow, except those of savepoints: a savepoint is complete after
  a later snapshot.
* Output is committed only when a checkpoint or a final snapshot is complete that includes it. So a
  savepoint makes no output visible.
* Retention removes neither the newest complete snapshot, nor a savepoint, nor one that is read.
* Barriers of a channel come in order, and no record comes behind the end of its channel.
* In an aligned snapshot, a task takes no record from behind a barrier before it has the barriers
  of all its channels.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

from penstock.dataflow.sink import Committable
from penstock.runtime.jobmanager.snapshots.pending_commits import PendingCommits
from penstock.runtime.network.elements import Barrier, Element, EncodedBatch, EndOfInput
from penstock.runtime.network.input_channel import InputChannel
from penstock.runtime.network.input_gate import InputGate
from penstock.runtime.serialization.record_batch import RecordBatch
from penstock.runtime.task.snapshots.snapshot_driver import SnapshotDriver
from penstock.snapshot.protocols.aligned import AlignedProtocol
from penstock.snapshot.protocols.aligned_cyclic import AlignedCyclicProtocol
from penstock.snapshot.protocols.events import SnapshotKind
from penstock.snapshot.storage.job_paths import JobPaths
from penstock.snapshot.storage.leases import Lease
from penstock.snapshot.storage.store import Store


class Invariants:
    """Checks the invariants in the runs of one job, and collects the violations."""

    def __init__(self) -> None:
        #: Texts about the invariants that did not hold, in order.
        self.violations: list[str] = []
        self._begun = self._newest = 0
        self._savepoints: set[int] = set()
        self._final = False
        self._read: dict[int, list[Path]] = {}

    def violated(self, text: str) -> None:
        """Note that something does not hold."""
        if text not in self.violations:
            self.violations.append(text)

    # ---- snapshots

    def snapshot_began(self, number: int) -> None:
        """Check the number of a snapshot that a JobManager has reported as begun."""
        if number <= self._begun:
            self.violated(f"snapshot {number} begins after snapshot {self._begun}")
        self._begun = number

    def snapshot_completed(self, number: int, kind: str) -> None:
        """Check the number of a snapshot that a JobManager has reported as complete."""
        if kind == SnapshotKind.SAVEPOINT.value:
            self._savepoints.add(number)
            if number > self._newest:
                self.violated(f"savepoint {number} is complete, and its output is not committed")
            return
        if number <= self._newest:
            self.violated(f"snapshot {number} is complete after snapshot {self._newest}")
        self._newest = number
        self._final = kind == SnapshotKind.FINAL.value

    def commits(self, root: Path, committables: Iterable[Committable]) -> None:
        """Check that a complete snapshot includes output that is about to be committed.

        Arguments:
            root: the job's folder.
            committables: the output.
        """
        newest = Store(root).newest()
        if newest is None:
            return  # The snapshots of the job hold no state, and have no manifests.
        late = max((c.snapshot for c in committables if c.lineage == newest.lineage), default=0)
        if late > newest.number:
            self.violated(f"output of snapshot {late} is committed before it is complete")
        if newest.kind is SnapshotKind.SAVEPOINT:
            self.violated(f"savepoint {newest.number} has committed output")

    def file_changes(self, operation: str, path: Path) -> None:
        """Check a change of the job's folder that is about to be made."""
        if operation != "remove" or path.name != "manifest":
            return
        number = JobPaths.number_of(path.parent.name)
        if number is None:
            return
        # At the end of the job, its checkpoints are removed. A newer snapshot may be durable before
        # it is reported.
        if number == self._newest and not self._final and not _has_newer(path.parent, number):
            self.violated(f"the newest snapshot {number} is removed")
        if number in self._savepoints:
            self.violated(f"savepoint {number} is removed")
        if number in self._read and not self._final:
            self.violated(f"snapshot {number} is removed while it is read")

    @property
    def reading(self) -> bool:
        """Whether a snapshot is being read."""
        return bool(self._read)

    def begin_reading(self, root: Path) -> tuple[int, Lease] | None:
        """Read the newest snapshot of a folder from now on; return its number and the lease."""
        paths, number = JobPaths(root), self._newest
        if not paths.manifest(number).is_file() or number in self._read:
            return None
        lease = Lease(paths, number)
        self._read[number] = [path for path in paths.snapshot(number).rglob("*") if path.is_file()]
        return number, lease

    def end_reading(self, number: int, lease: Lease) -> None:
        """Check that the files of a snapshot are still there, and end its lease."""
        lost = [path.name for path in self._read.pop(number) if not path.exists()]
        if lost and not self._final:
            self.violated(f"snapshot {number} was read, and has lost {lost[0]}")
        lease.release()

    # ---- channels

    @contextmanager
    def watching(self, root: Callable[[], Path]) -> Iterator[None]:
        """Check all elements that tasks take in this context, and all output that is committed.

        Arguments:
            root: returns the job's folder.
        """
        take, create, abort = InputGate.take, SnapshotDriver.__init__, SnapshotDriver.abort
        commit = PendingCommits.commit
        watches: WeakKeyDictionary[InputGate, _GateWatch] = WeakKeyDictionary()
        watched: WeakKeyDictionary[SnapshotDriver, _GateWatch] = WeakKeyDictionary()

        def watched_take(gate: InputGate) -> tuple[InputChannel | None, Element] | None:
            if gate.replaying:
                return take(gate)
            taken = take(gate)
            watch = watches.get(gate)
            if taken is not None and watch is not None:
                watch.takes(*taken)
            return taken

        def watched_create(
            driver: SnapshotDriver, protocol: Any, gate: InputGate, *rest: Any
        ) -> None:
            create(driver, protocol, gate, *rest)
            watched[driver] = watches[gate] = _GateWatch(self, driver)

        def watched_abort(driver: SnapshotDriver, number: int) -> None:
            watch = watched[driver]
            watch.aborted = max(watch.aborted, number)
            abort(driver, number)

        async def watched_commit(commits: PendingCommits) -> None:
            if commits.pending:
                self.commits(root(), commits.pending)
            await commit(commits)

        gates: Any = InputGate
        drivers: Any = SnapshotDriver
        sinks: Any = PendingCommits
        gates.take, sinks.commit = watched_take, watched_commit
        drivers.__init__, drivers.abort = watched_create, watched_abort
        try:
            yield
        finally:
            gates.take, sinks.commit = take, commit
            drivers.__init__, drivers.abort = create, abort


def _has_newer(folder: Path, number: int) -> bool:
    """Return whether there is a complete snapshot beside this one with a higher number."""
    others = ((JobPaths.number_of(one.name), one) for one in folder.parent.iterdir())
    return any(
        other is not None and other > number and (one / "manifest").is_file()
        for other, one in others
    )


class _GateWatch:
    """Checks the elements that one task takes."""

    def __init__(self, invariants: Invariants, driver: SnapshotDriver) -> None:
        self._invariants, self._driver = invariants, driver
        self._aligned = isinstance(driver.protocol, AlignedProtocol | AlignedCyclicProtocol)
        #: The last barrier of each channel.
        self._epochs: dict[InputChannel, int] = {}
        self._ended: set[InputChannel] = set()
        self._newest = 0
        #: The greatest number of an aborted snapshot. Its barrier, and those before, do not align.
        self.aborted = 0

    def takes(self, channel: InputChannel | None, element: Element) -> None:
        """Check an element before the task processes it."""
        if channel is None:
            return
        if isinstance(element, Barrier):
            if element.number <= self._epochs.get(channel, 0):
                self._invariants.violated(f"barrier {element.number} comes late on {channel.id}")
            self._epochs[channel] = element.number
            self._newest = max(self._newest, element.number)
        elif isinstance(element, RecordBatch | EncodedBatch):
            if channel in self._ended:
                self._invariants.violated(f"a record comes behind the end of {channel.id}")
            elif self._aligned and not channel.is_feedback:
                self._check_epoch(channel)
        elif isinstance(element, EndOfInput):
            self._ended.add(channel)

    def _check_epoch(self, channel: InputChannel) -> None:
        epoch, driver = self._epochs.get(channel, 0), self._driver
        if epoch == self._newest > max(driver.last_snapshot, self.aborted) and not driver.events:
            self._invariants.violated(
                f"a record passes the aligned barrier {epoch} on {channel.id}"
            )
