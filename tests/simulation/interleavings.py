"""A search over everything that can happen to the tasks of a small program, in any order.

The support of `tests/snapshot/protocols/test_interleavings.py` and
`tests/snapshot/protocols/test_cycle_interleavings.py`, which say what is looked for and how.
"""

from __future__ import annotations

import random
import shutil
import tempfile
from collections import deque
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from penstock.dataflow.errors import PenstockError
from penstock.runtime.network.channel_log import ChannelLog
from penstock.runtime.network.feedback_channel import FeedbackChannel
from penstock.runtime.network.spill_queue import Hold, SpillQueue
from penstock.runtime.task.snapshots.task_snapshot import TaskSnapshot
from tests.simulation.lineage import Program, Totals
from tests.simulation.tasks import (
    PLAIN,
    REAL,
    Choice,
    Cluster,
    Compiled,
    Kit,
    Mode,
    Recording,
    Snapshot,
    Violation,
    shown,
)


def temporary_folder() -> tempfile.TemporaryDirectory[str]:
    """A folder in memory, if there can be one: nothing here survives the test."""
    shm = Path("/dev/shm")
    return tempfile.TemporaryDirectory(dir=shm if shm.is_dir() else None)


@dataclass
class Explored:
    """What a search has seen: states, transitions, interleavings and distinct snapshots."""

    states: int = 0
    transitions: int = 0
    interleavings: int = 0
    snapshots: set[Any] = field(default_factory=set)
    logged: int = 0


class Search:
    """Depth-first, over everything that can happen.

    Arguments:
        program, mode: what runs, and how.
        kit: the classes that are run; snapshots are restored into the same.
    """

    def __init__(self, program: Program, mode: Mode = PLAIN, kit: Kit = REAL) -> None:
        self.compiled, self.kit = Compiled.of(program), kit
        self.mode = replace(mode, eager=True)
        self.expected = program.result(closes=mode.closes)
        self.explored = Explored()
        self._ids: dict[Any, int] = {}
        self._next: list[list[int]] = []
        self._path: tuple[Choice, ...] = ()

    def run(self) -> Explored:
        """Search all; raises `Violation` with the choices that lead to it."""
        # The oldest first: that finds what is wrong sooner, and takes no longer if nothing is.
        todo: deque[tuple[tuple[Choice, ...], int]] = deque([((), -1)])
        with temporary_folder() as folder:
            while todo:
                path, parent = todo.popleft()
                root = Path(folder, "job")
                try:
                    self._follow(path, parent, todo, root)
                except (Violation, PenstockError) as error:
                    raise Violation(f"{error}\nafter {self._path}") from error
                if root.exists():
                    shutil.rmtree(root)
        self.explored.states = len(self._next)
        self.explored.transitions = sum(map(len, self._next))
        self.explored.interleavings = self._count()
        return self.explored

    def _follow(self, path: tuple[Choice, ...], parent: int, todo: deque[Any], root: Path) -> None:
        with closing(Cluster(self.compiled, root, self.kit, self.mode)) as cluster:
            self._explore(cluster, path, parent, todo)

    def _explore(
        self, cluster: Cluster, path: tuple[Choice, ...], parent: int, todo: deque[Any]
    ) -> None:
        self._path = path
        for choice in path[:-1]:
            cluster.do(choice)
        cluster.snapshots.clear()  # they were checked when they were met first
        for choice in path[-1:]:
            cluster.do(choice)
        while True:
            self._check(cluster)
            mark = fingerprint(cluster)
            known = self._ids.get(mark)
            id = self._ids.setdefault(mark, len(self._next))
            if parent >= 0:
                self._next[parent].append(id)
            if known is not None:
                return
            self._next.append([])
            choices = cluster.choices()
            if not choices:
                cluster.check_end()
                cluster.check_result(self.expected)
                return
            todo += [((*self._path, choice), id) for choice in choices[1:]]
            parent = id
            self._path = (*self._path, choices[0])
            cluster.do(choices[0])

    def _check(self, cluster: Cluster) -> None:
        """Every snapshot that was completed is feasible, and restored comes to the same."""
        for task in cluster.tasks.values():
            task.snapshots.protocol.validate()  # type: ignore[attr-defined]
        for snapshot in cluster.snapshots:
            content = tuple(_part(handle) for _, handle in sorted(snapshot.handles.items()))
            if content in self.explored.snapshots:
                continue
            self.explored.snapshots.add(content)
            self.explored.logged += cluster.check_snapshot(snapshot)
            resume(snapshot, cluster, self.expected, random.Random(0))
        cluster.snapshots.clear()

    def _count(self) -> int:
        """How many paths lead from the first state to a last one; there are no cycles."""
        paths: dict[int, int] = {}
        stack = [0]
        while stack:
            id = stack[-1]
            missing = [after for after in self._next[id] if after not in paths]
            if missing:
                stack += missing
                continue
            stack.pop()
            paths[id] = sum(paths[after] for after in self._next[id]) or 1
        return paths[0]


def resume(
    snapshot: Snapshot, before: Cluster, expected: Totals, rng: random.Random, depth: int = 1
) -> None:
    """Restore a snapshot and go on to the end, with one more snapshot, which is checked too.

    Raises `Violation` if that does not come to the expected result.
    """
    mode = replace(before.mode, snapshots=1, aborts=0, eager=False)
    cluster = Cluster(before.compiled, before.root, before.kit, mode, snapshot, rng)
    with closing(cluster):
        while choices := cluster.choices():
            cluster.do(rng.choice(choices))
        cluster.check_end()
        cluster.check_result(expected)
    for again in cluster.snapshots:
        cluster.check_snapshot(again)
        if depth:
            resume(again, cluster, expected, rng, depth - 1)


# ---- states with the same future are equal


def fingerprint(cluster: Cluster) -> int:
    """Equal for states with the same future."""
    tasks = tuple(map(_task, cluster.tasks.values()))
    wires = tuple((*map(shown, wire.queue), wire.credits) for wire in cluster.wires.values())
    flight = None
    if cluster.flight is not None:
        flight = tuple(
            (id, part.loop, tuple(map(_part, part.handles)))
            for id, part in sorted(cluster.flight.items())
        )
    watch = None
    if cluster.mode.closes:
        watch = tuple(
            (frozenset(w.ended), w.number, repr(sorted(w.statuses.items())), w.commanded, w.closed)
            for w in cluster.watch._watched
        )
    messages = tuple(map(tuple, cluster.down.values())), tuple(map(repr, cluster.up.values()))
    counters = cluster.number, cluster.begun, cluster.given_up, cluster.fruitless
    return hash((tasks, wires, flight, watch, messages, counters))


def _part(handle: Any) -> Any:
    # Keyed state follows from what was seen, and only the order of its keys differs.
    return (handle.uid, handle.subtask, repr(handle.small), handle.logs, handle.ended)


def _task(task: Recording) -> Any:
    source_input, gate, protocol = task.source_input, task.gate, task.snapshots.protocol
    end = task.end_of_input
    return (
        None if source_input is None else (repr(source_input.snapshot()), source_input.ended),
        (task.ended, task.snapshots.final_barrier_passed, task.slices.sizer.slice),
        tuple(task._mailbox._messages),
        tuple(record for _, rest in task.slices.unprocessed() for record in rest.rows()),
        (frozenset(end._awaited), end.rounds, end.emitted, end.running),
        tuple((*map(shown, o.sealed), "|", *o.buffer) for o in task.outputs.channels),
        tuple(getattr(r, "_next", 0) for node in task.chain.root.walk() for r in node.partitioners),
        tuple(channel.id for channel in gate._ready),
        tuple(channel.id for channel in gate._ready_back),
        (gate._turns, gate._waiting_barriers),
        tuple(map(_channel, gate.channels.values())),
        (
            protocol.number,  # type: ignore[attr-defined]
            protocol.settled,  # type: ignore[attr-defined]
            frozenset(protocol.blocked),  # type: ignore[attr-defined]
            frozenset(getattr(protocol, "marked", ())),
        ),
        tuple(_task_snapshot(cut) for cut in task.checkpoint_writer._snapshots),
        tuple(_task_snapshot(cut) for cut in task.checkpoint_writer._logging),
        tuple((*sorted(task.taken[uid]), "|", *sorted(task.given[uid])) for uid in task.taken),
        (task.event_time.running, task.event_time.at_end, len(task.event_time._queue)),
        task.extra(),
    )


def _channel(channel: Any) -> Any:
    queue = tuple(map(shown, channel._queue)), channel.blocked, channel.ended
    if not isinstance(channel, FeedbackChannel):
        return queue
    log = channel._log
    return queue, None if log is None else _log(log), _unread(channel._spill)


def _unread(spill: SpillQueue) -> bytes:
    return b"".join(file.path.read_bytes()[file.read_bytes :] for file in spill._files)


def _log(log: ChannelLog) -> Any:
    parts = []
    for part in log._parts:
        if isinstance(part, Hold):
            data = b"".join(file.path.read_bytes() for file in part.files)
            parts.append((part.start, part.end, data, part.records))
        else:
            parts.append(shown(part.batch))
    return log.number, log.records, tuple(parts)


def _task_snapshot(cut: TaskSnapshot) -> Any:
    small = repr(sorted(cut.small.items()))
    written = tuple(sorted(cut.handles))
    logs = tuple(map(_log, cut.logs))
    return cut.number, cut.aborted, cut.logging, small, written, logs, cut.ended, cut.emitted
