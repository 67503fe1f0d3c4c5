"""Adds up cases: how many went wrong and how, and what happened in them."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from tests.simulation.random_jobs.runner import CaseResult
from tests.simulation.random_jobs.settings import MODES

__all__ = ["Tally", "describe"]

#: What must have happened in a hundred programs at least, or they were not worth much.
WORTH = {
    "kills of a worker": 30,
    "kills of a JobManager": 4,
    "stops": 12,
    "resumes": 20,
    "restarts": 20,
    "rescaled": 4,
    "logs restored": 3,
    "snapshots": 300,
    "pauses": 3,
    "cuts": 3,
    "stops of the machine": 3,
    "savepoints": 3,
    "fewer slots": 1,
    "requests to the object store": 200,
    "resumes on new machines": 1,
}


@dataclass
class Tally:
    """The sum of many cases.

    Arguments:
        programs: how many there were, by mode.
        lost, doubled, late, hung, crashed: programs that went wrong in this way, by mode.
        happened: kills, stops, resumes and the like.
        failed: the seeds of those that went wrong.
    """

    programs: Counter[str] = field(default_factory=Counter)
    lost: Counter[str] = field(default_factory=Counter)
    doubled: Counter[str] = field(default_factory=Counter)
    late: Counter[str] = field(default_factory=Counter)
    hung: Counter[str] = field(default_factory=Counter)
    crashed: Counter[str] = field(default_factory=Counter)
    happened: Counter[str] = field(default_factory=Counter)
    failed: list[int] = field(default_factory=list)

    def add(self, result: CaseResult) -> None:
        """Add a case."""
        mode = result.mode
        self.programs[mode] += 1
        self.lost[mode] += bool(result.lost) and not result.hung and not result.crashes
        self.doubled[mode] += bool(result.doubled) and not result.repeats
        self.late[mode] += bool(result.late)
        self.hung[mode] += result.hung
        self.crashed[mode] += bool(result.crashes or result.violations)
        self.happened += result.happened
        if not result.right:
            self.failed.append(result.seed)

    def merge(self, other: Tally) -> None:
        """Add what another tally holds."""
        for mine, theirs in (
            (self.programs, other.programs),
            (self.lost, other.lost),
            (self.doubled, other.doubled),
            (self.late, other.late),
            (self.hung, other.hung),
            (self.crashed, other.crashed),
            (self.happened, other.happened),
        ):
            mine.update(theirs)
        self.failed += other.failed

    def missed(self) -> dict[str, int]:
        """Return what happened too seldom for the number of programs, with how often it did."""
        share = self.programs.total() / 100
        return {
            what: self.happened[what]
            for what, least in WORTH.items()
            if self.happened[what] < int(least * share)
        }

    def summary(self) -> str:
        """Return one line with the sums."""
        line = (
            f"programs {self.programs.total()} · lost {self.lost.total()} · "
            f"doubled {self.doubled.total()} · hung {self.hung.total()} · "
            f"late without cause {self.late.total()}"
        )
        return line + (f" · crashed {self.crashed.total()}" if self.crashed.total() else "")

    def table(self) -> str:
        """Return the sums of each mode, and what happened."""
        lines = [
            f"{'mode':24}{'programs':>10}{'lost':>6}{'doubled':>9}{'late':>6}{'hung':>6}"
            f"{'crashed':>9}"
        ]
        for mode in [*MODES, "cached", "changing"]:
            lines.append(
                f"{mode:24}{self.programs[mode]:>10}{self.lost[mode]:>6}"
                f"{self.doubled[mode]:>9}{self.late[mode]:>6}{self.hung[mode]:>6}"
                f"{self.crashed[mode]:>9}"
            )
        happened = " · ".join(f"{what} {n}" for what, n in sorted(self.happened.items()))
        return "\n".join([*lines, happened])


def describe(result: CaseResult, smaller: tuple[list[str], list[str]] | None = None) -> str:
    """Return how a case went wrong, and the command that runs it again.

    Arguments:
        result: the case.
        smaller: the faults, and the plain fields, with which it still goes wrong.
    """
    what = [str(result.job), *result.log]
    what += [f"does not hold: {text}" for text in result.violations]
    what += [f"crash: {error!r}"[:500] for error in result.crashes]
    command = f"python -m tests.simulation.random_jobs --seed {result.seed} --verbose"
    lines = [
        f"seed {result.seed} ({result.mode}): lost {result.lost.total()}, doubled "
        f"{result.doubled.total()}, late {result.late.total()}, hung {result.hung}, "
        f"crashes {len(result.crashes)}",
        *what,
        f"lost {dict(result.lost.most_common(3))}",
        f"doubled {dict(result.doubled.most_common(3))}",
        f"run it again: {command}",
    ]
    if smaller is not None:
        faults, plain = smaller
        small = f"{command} --faults {','.join(faults) or 'none'}"
        lines.append(f"run less: {small}" + (f" --plain {','.join(plain)}" if plain else ""))
    return "\n  ".join(lines)
