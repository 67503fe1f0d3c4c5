"""Small programs with loops, drawn at random, and a schedule of chance for them.

The support of `tests/snapshot/protocols/test_cycle_random.py`, which says what is looked for and
how.
"""

from __future__ import annotations

import random
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tests.simulation.lineage import SPREADS, Op, Program, Totals
from tests.simulation.tasks import REAL, Cluster, Compiled, Kit, Mode, Snapshot, Violation

#: Records that all operators of a program take together, at most.
MOST_TAKEN = 40


def draw_program(rng: random.Random) -> Program:
    """A program with at least one loop, and some records in it."""
    while True:
        program = _draw(rng)
        try:
            taken = program.result(limit=MOST_TAKEN)
        except OverflowError:
            continue
        total = sum(counter.total() for counter in taken.values())
        if 4 <= total <= MOST_TAKEN and all(taken[op.name] for op in program.ops):
            return program


def _draw(rng: random.Random) -> Program:
    names = "ABC"[: rng.choice([1, 2, 2, 3, 3])]
    sources = "st"[: rng.choice([1, 1, 2])]
    rows: dict[str, Any] = {}
    for name in sources:
        parallelism = rng.choice([1, 1, 2])
        records = [(f"{name}{i}", rng.randint(1, 4)) for i in range(rng.randint(1, 3))]
        rows[name] = tuple(tuple(records[i::parallelism]) for i in range(parallelism))
    most = rng.choice([1, 2, 2, 3])
    wide = {name: rng.choice([most, most, rng.randint(1, most)]) for name in names}
    wide.update({name: len(parts) for name, parts in rows.items()})
    fed_back = [(j, i) for i in range(len(names)) for j in range(i, len(names))]
    loops = rng.sample(fed_back, min(len(fed_back), rng.choice([1, 1, 2, 3])))
    ops = []
    for i, name in enumerate(names):
        keyed = rng.random() < 0.4
        before = [*sources, *names[:i]]
        producers = [before[-1] if rng.random() < 0.7 else rng.choice(before)]
        if rng.random() < 0.3:
            producers.append(rng.choice(before))
        producers += [names[j] for j, to in loops if to == i]
        ops.append(
            Op(
                name,
                tuple(
                    (p, "hash" if keyed else _spread(rng, wide[p], wide[name])) for p in producers
                ),
                keyed,
                wide[name],
                chained=rng.random() < 0.5,
            )
        )
    # What is not read by anyone must still be reached; a source that nobody reads is left out.
    read = {producer for op in ops for producer, _ in op.inputs}
    rows = {name: parts for name, parts in rows.items() if name in read}
    program = Program(
        rows,
        tuple(ops),
        batch_records=rng.choice([1, 1, 2, 3]),
        read_records=rng.choice([1, 2]),
    )
    hooked = tuple(
        # In a loop what has no state would emit whenever it is asked, for ever.
        replace(op, hook=(op.keyed or op.name not in program.looped) and rng.random() < 0.3)
        for op in ops
    )
    return replace(program, ops=hooked)


def _spread(rng: random.Random, sources: int, targets: int) -> str:
    how = rng.choice(SPREADS)
    return "auto" if how == "forward" and sources != targets else how


def draw_mode(rng: random.Random) -> Mode:
    """How much is left to chance."""
    return Mode(
        lazy=rng.random() < 0.5,
        wires=rng.random() < 0.5,
        messages=rng.random() < 0.5,
        spill=rng.random() < 0.25,
        files=rng.random() < 0.1,
        by_slot=rng.random() < 0.5,
        closes=rng.random() < 0.5,
        slow=rng.random() < 0.2,
        snapshots=rng.choice([1, 1, 2, 3]),
        aborts=rng.choice([0, 0, 1]),
    )


def run(cluster: Cluster, rng: random.Random, bursts: tuple[int, ...] = (0, 1, 3)) -> None:
    """Let what can happen happen, until nothing can any more.

    Some tasks, wires and messages are slow throughout, so that records pile up, and barriers
    come early to one and late to another.

    Arguments:
        cluster, rng: what, and by which chance.
        bursts: a task may make so many steps more at once.
    """
    weights: dict[Any, float] = {}
    for _ in range(5_000):
        choices = cluster.choices()
        if not choices:
            return
        for choice in choices:
            if choice not in weights:
                weights[choice] = rng.choice([0.02, 0.2, 1.0, 1.0])
        (chosen,) = rng.choices(choices, [weights[choice] for choice in choices])
        cluster.do(chosen)
        if chosen[0] == "step":
            for _ in range(rng.choice(bursts)):
                if not cluster.can_step(chosen[1]):
                    break
                cluster.do(chosen)
    raise Violation("it goes on for ever")


@dataclass
class Tally:
    """What was met."""

    cases: int = 0
    snapshots: int = 0
    logged: int = 0
    rounds: int = 0
    given_up: int = 0
    spilled: int = 0


def check_case(
    compiled: Compiled,
    expected: tuple[Totals, Totals],
    seed: str,
    root: Path,
    tally: Tally,
    kit: Kit = REAL,
) -> None:
    """One schedule: each snapshot is feasible and complete, and restored comes to the same.

    Arguments:
        compiled: the program.
        expected: what it comes to, without and with the end of its loops.
        seed: of the schedule.
        root: an empty folder.
        tally: is added to.
        kit: what is run.
    """
    rng = random.Random(seed)
    mode = draw_mode(rng)
    cluster = Cluster(compiled, root, kit, mode, rng=rng)
    with closing(cluster):
        run(cluster, rng)
        _check(cluster, expected, tally)
    tally.cases += 1
    for number, snapshot in enumerate(cluster.snapshots):
        # Of those that only found out that a loop is quiet, some will do.
        if number < mode.snapshots or rng.random() < 0.3:
            _resume(cluster, snapshot, expected, rng, tally)


def _check(cluster: Cluster, expected: tuple[Totals, Totals], tally: Tally) -> None:
    cluster.check_end()
    cluster.check_result(expected[cluster.mode.closes])
    for snapshot in cluster.snapshots:
        tally.logged += cluster.check_snapshot(snapshot)
        tally.snapshots += 1
        tally.rounds += any(handle.ended > 1 for handle in snapshot.handles.values())
    tally.given_up += cluster.given_up
    tally.spilled += sum(
        back_edge.spilled_peak > 0
        for task in cluster.tasks.values()
        for back_edge in task.gate.back_edges.values()
    )


def _resume(
    before: Cluster,
    snapshot: Snapshot,
    expected: tuple[Totals, Totals],
    rng: random.Random,
    tally: Tally,
) -> None:
    # Most are resumed in the cheapest way: what counts is what is in the snapshot.
    again = rng.random() < 0.15
    mode = replace(before.mode, lazy=False, snapshots=int(again), aborts=0)
    cluster = Cluster(before.compiled, before.root, before.kit, mode, snapshot, rng)
    with closing(cluster):
        run(cluster, rng, (3, 9, 30))
        _check(cluster, expected, tally)
    if again and cluster.snapshots:
        _resume(cluster, rng.choice(cluster.snapshots), expected, rng, tally)
