"""The small jobs that `mode_model.py` runs under each checkpointing mode."""

from __future__ import annotations

from dataclasses import dataclass, replace

from tests.simulation.execution import Edge, Record

__all__ = ["Job", "abandoned", "jobs", "small"]


@dataclass(frozen=True)
class Job:
    """A small job.

    Arguments:
        edges: between operators, named by one letter each.
        sources: per source operator, what each of its subtasks reads.
        parallelism: subtasks of each operator.
        numbers: snapshots that are taken, one after the other.
        aborts: those of them that the coordinator may give up, at any time.
        delayed: what is sent takes any time to arrive; else only as long as there is no room.
    """

    edges: tuple[Edge, ...]
    sources: dict[str, tuple[tuple[Record, ...], ...]]
    parallelism: int = 1
    numbers: tuple[int, ...] = (1,)
    aborts: tuple[int, ...] = ()
    delayed: bool = True


def jobs() -> dict[str, Job]:
    """The shapes that every mode is tried on."""
    forward, into = "forward", Edge("S", "A", "forward")
    return {
        "join": Job(
            (Edge("P", "J", forward), Edge("Q", "J", forward)),
            {"P": (((0, 1), (2, 1)),), "Q": (((1, 1), (3, 1)),)},
        ),
        "diamond": Job(
            (
                Edge("S", "A", forward),
                Edge("S", "B", forward),
                Edge("A", "J", forward),
                Edge("B", "J", forward),
            ),
            {"S": (((0, 2), (1, 2), (2, 2)),)},
        ),
        "shuffle": Job(
            (Edge("S", "T", "hash"),), {"S": (((0, 1), (1, 1)), ((2, 1), (3, 1)))}, parallelism=2
        ),
        "self-loop": Job(
            (into, Edge("A", "A", "hash", True)), {"S": (((0, 4),), ((1, 3),))}, parallelism=2
        ),
        "two-task loop": Job(
            (into, Edge("A", "B", forward), Edge("B", "A", forward, True)),
            {"S": (((0, 5), (1, 4)),)},
        ),
        "nested": Job(
            (
                into,
                Edge("A", "B", forward),
                Edge("B", "C", forward),
                Edge("C", "B", forward, True),
                Edge("C", "A", forward, True),
            ),
            {"S": (((0, 6), (1, 5)),)},
        ),
    }


def small() -> dict[str, Job]:
    """The same shapes with fewer records, for modes in which more can happen."""
    sources: dict[str, dict[str, tuple[tuple[Record, ...], ...]]] = {
        "join": {"P": (((0, 1),),), "Q": (((1, 1),),)},
        "diamond": {"S": (((0, 2), (1, 2)),)},
        "shuffle": {"S": (((0, 1),), ((3, 1),))},
        "self-loop": {"S": (((0, 4), (1, 3)),)},
        "two-task loop": {"S": (((0, 5), (1, 4)),)},
        "nested": {"S": (((0, 5),),)},
    }
    return {
        name: replace(job, sources=sources[name], parallelism=2 if name == "shuffle" else 1)
        for name, job in jobs().items()
    }


def abandoned() -> dict[str, Job]:
    """The same shapes with a first snapshot that may be given up, and a second; smaller."""
    sources: dict[str, dict[str, tuple[tuple[Record, ...], ...]]] = {
        "join": {"P": (((0, 1),),), "Q": ((),)},
        "diamond": {"S": (((0, 2),),)},
        "shuffle": {"S": (((0, 1),), ())},
        "self-loop": {"S": (((0, 3),),)},
        "two-task loop": {"S": (((0, 4),),)},
        "nested": {"S": (((0, 5),),)},
    }
    return {
        name: replace(
            job,
            sources=sources[name],
            parallelism=2 if name == "shuffle" else 1,
            numbers=(1, 2),
            aborts=(1,),
            delayed=False,
        )
        for name, job in jobs().items()
    }
