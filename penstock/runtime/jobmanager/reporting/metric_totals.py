"""Add up the metrics of operators over their subtasks and over the attempts of a job."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from penstock.dataflow.metrics import MetricPath, names_of, plain_number
from penstock.runtime.jobmanager.reporting.begun_tasks import BegunTasks


@dataclass(frozen=True)
class _Id:
    """Identifies a metric of an operator in all its subtasks."""

    uid: str
    path: MetricPath
    name: str
    kind: str


class MetricTotals:
    """Adds up the metrics that the subtasks of a job report.

    Counters, meters and distributions begin at 0 in each attempt, so those of earlier attempts are
    added. A gauge is a value of the present, and only that of the newest attempt is known.
    """

    def __init__(self) -> None:
        #: The values of the current attempt, by subtask.
        self._values: dict[_Id, dict[int, Any]] = {}
        #: The sums over all earlier attempts. They contain no gauges.
        self._before: dict[_Id, Any] = {}

    def begin_attempt(self, begun: BegunTasks) -> None:
        """Add the values of some tasks, whose attempt is over, to the sums."""
        for id, values in [*self._values.items()]:
            over = [values.pop(one) for one in [*values] if begun.has_operator(id.uid, one)]
            if over and id.kind != "gauge":
                earlier = [self._before[id]] if id in self._before else []
                total = _combined(id.kind, over, earlier)
                self._before[id] = [total[0], 0.0] if id.kind == "meter" else total
            if not values:
                del self._values[id]

    def update(self, rows: Iterable[list[Any]]) -> None:
        """Record the metrics in a message of a worker."""
        for uid, subtask, parts, name, kind, value in rows:
            path = tuple(part if isinstance(part, str) else tuple(part) for part in parts)
            self._values.setdefault(_Id(uid, path, name, kind), {})[subtask] = value

    def rows(self, names: dict[str, str]) -> list[dict[str, Any]]:
        """Return each metric as a map.

        `name` is the whole name below the operator. `value` is the sum over all subtasks and all
        attempts: a number for a counter; for others a map. `subtasks` has the value of each subtask
        in the newest attempt.

        Arguments:
            names: the names of the operators, by uid, in the order of the rows.
        """
        order = {uid: place for place, uid in enumerate(names)}
        ids = [id for id in {**self._values, **self._before} if id.uid in order]
        rows = []
        for id in sorted(ids, key=lambda id: order[id.uid]):
            values = self._values.get(id, {})
            earlier = [self._before[id]] if id in self._before else []
            total = _combined(id.kind, values.values(), earlier)
            subtasks = [values.get(index) for index in range(max(values, default=-1) + 1)]
            rows.append(
                {
                    "uid": id.uid,
                    "operator": names[id.uid],
                    "name": ".".join([*names_of(id.path), id.name]),
                    "variables": dict(part for part in id.path if isinstance(part, tuple)),
                    "kind": id.kind,
                    "value": _shown(id.kind, total),
                    "subtasks": [_shown_of_subtask(id.kind, value) for value in subtasks],
                }
            )
        return rows


def _combined(kind: str, values: Iterable[Any], earlier: Iterable[Any]) -> Any:
    """Return the sum of the values of subtasks and of earlier attempts."""
    found = [*values, *earlier]
    match kind:
        case "counter":
            return sum(found)
        case "meter":
            return [sum(count for count, _ in found), sum(rate for _, rate in found)]
        case "distribution":
            used = [value for value in found if value[0]]
            if not used:
                return [0, 0, None, None]
            counts, sums, least, greatest = zip(*used, strict=True)
            return [sum(counts), sum(sums), min(least), max(greatest)]
    known = [value for value in found if value is not None and not isinstance(value, str)]
    return [min(known), max(known), sum(known)] if known else None


def _shown(kind: str, value: Any) -> Any:
    """Return a combined value as reports show it."""
    if kind == "gauge":
        return None if value is None else _named(("min", "max", "sum"), value)
    return _shown_of_subtask(kind, value)


def _shown_of_subtask(kind: str, value: Any) -> Any:
    if value is None or kind == "gauge":
        return value
    if kind == "counter":
        return plain_number(value)
    if kind == "meter":
        return _named(("count", "rate"), value)
    shown = _named(("count", "sum", "min", "max"), value)
    return {**shown, "mean": value[1] / value[0] if value[0] else None}


def _named(names: tuple[str, ...], values: list[Any]) -> dict[str, Any]:
    return {name: plain_number(value) for name, value in zip(names, values, strict=True)}
