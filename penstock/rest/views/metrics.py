"""Show metrics as lists of names and values, as Flink's API does."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from penstock.rest.json_schema import NUMBER, STRING, Schema, array, record
from penstock.rest.measurements import Measurement, MetricScope

#: The ways to combine the values of subtasks.
AGGREGATIONS = ("min", "max", "sum", "avg", "skew")


def metric_list(found: Iterable[Measurement], get: str | None) -> list[dict[str, Any]]:
    """Return the ids of metrics, or the values of some.

    Arguments:
        found: the metrics.
        get: the ids whose values are wanted, separated by commas; None for all ids.
    """
    values = {_id(one): one.value for one in found}
    if get is None:
        return [{"id": id} for id in values]
    wanted = get.split(",")
    return [{"id": id, "value": str(values[id])} for id in wanted if id in values]


def aggregated(found: Iterable[Measurement], get: str | None) -> list[dict[str, Any]]:
    """Return metrics over all subtasks: their ids, or combined values of some.

    The skew is Flink's: the mean distance from the mean, in percent of the mean.
    """
    values: dict[str, list[float]] = {}
    for one in found:
        if not isinstance(one.value, str):
            values.setdefault(_name(one), []).append(one.value)
    if get is None:
        return [{"id": id} for id in values]
    return [{"id": id, **_combined(values[id])} for id in get.split(",") if id in values]


def _name(one: Measurement) -> str:
    """Return the name of a metric, with that of its operator before it."""
    groups = "".join(f"{key}={value}." for key, value in (one.variables or {}).items())
    if one.scope is MetricScope.OPERATOR:
        return f"{one.labels['operator_name']}.{groups}{one.name}"
    return one.name


def _id(one: Measurement) -> str:
    return _name(one) if one.subtask is None else f"{one.subtask}.{_name(one)}"


def _combined(values: list[float]) -> dict[str, float]:
    mean = math.fsum(values) / len(values)
    distance = math.fsum(abs(value - mean) for value in values) / len(values)
    combined = (min(values), max(values), math.fsum(values), mean)
    skew = 100 * distance / mean if mean else 0.0
    return dict(zip(AGGREGATIONS, (*combined, min(100.0, abs(skew))), strict=True))


SCHEMAS: dict[str, Schema] = {
    "Metrics": array(record({"id": STRING}, {"value": STRING})),
    "AggregatedMetrics": array(record({"id": STRING}, dict.fromkeys(AGGREGATIONS, NUMBER))),
}
