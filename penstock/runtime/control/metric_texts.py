"""Turn the metrics of a job into text for the terminal, `logging` and the job's log.

Some counters of the engine count records that are lost, or results that do not come. They get whole
sentences with a remedy. All others get their name and their value.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from penstock.dataflow.metrics import (
    FIRST_EVENT_TIME,
    LATE_RECORDS_DROPPED,
    LATE_RECORDS_TO_SIDE_OUTPUT,
    LINES_SKIPPED,
    MESSAGES_SKIPPED,
    TIMERS_NOT_FIRED,
    WINDOWS_NOT_FIRED,
)

#: The number of metrics that are shown. The report of the job has all of them.
_MAX_SHOWN = 20

Row = Mapping[str, Any]


def _late(number: int, operator: str) -> str:
    return (
        f"{_counted(number, 'late record was', 'late records were')} dropped by {operator!r}: the "
        f"watermark had passed their time. To keep them, let the watermark strategy wait longer, "
        f"or read them from a side output"
    )


#: The counters of the engine that are shown only if they have counted something.
_ENGINE_COUNTERS = frozenset({LATE_RECORDS_TO_SIDE_OUTPUT, TIMERS_NOT_FIRED})


def _skipped(number: int, operator: str) -> str:
    lines = _counted(number, "bad line was", "bad lines were")
    return f"{lines} skipped by {operator!r}: the log shows the first of each file"


def _undecoded(number: int, operator: str) -> str:
    messages = _counted(number, "bad message was", "bad messages were")
    return f"{messages} skipped by {operator!r}: the log shows the first of each split"


def _unfired(number: int, operator: str) -> str:
    windows = _counted(number, "window", "windows")
    return (
        f"{windows} of {operator!r} did not fire, and the results are missing: the input ended "
        f"before their processing time had come. Windows by event time fire at the end of the input"
    )


#: The sentence for each counter of losses, given its value and the name of the operator.
_LOSSES: Mapping[str, Callable[[int, str], str]] = {
    LATE_RECORDS_DROPPED: _late,
    LINES_SKIPPED: _skipped,
    MESSAGES_SKIPPED: _undecoded,
    WINDOWS_NOT_FIRED: _unfired,
}


def loss_texts(metrics: Sequence[Row]) -> list[str]:
    """Return a sentence for each operator that has lost records.

    Arguments:
        metrics: the metrics, as the events `status` and `finished` have them.
    """
    return [
        _LOSSES[row["name"]](row["value"], row["operator"])
        for row in metrics
        if row["name"] in _LOSSES and row["value"]
    ]


def metric_texts(metrics: Sequence[Row]) -> list[str]:
    """Return a line for each metric of a function, and for counters of the engine above 0.

    Those of `loss_texts` are left out.

    Arguments:
        metrics: the metrics, as the events `status` and `finished` have them.
    """
    shown = [row for row in metrics if not _is_hidden(row)]
    lines = [f"{row['operator']}: {row['name']} {_value(row)}" for row in shown[:_MAX_SHOWN]]
    if len(shown) > _MAX_SHOWN:
        lines.append(f"and {len(shown) - _MAX_SHOWN} more metrics, which are in the report")
    return lines


def _is_hidden(row: Row) -> bool:
    name = row["name"]
    if name in _ENGINE_COUNTERS:
        return not row["value"]
    return name in _LOSSES or name == FIRST_EVENT_TIME


def _value(row: Row) -> str:
    value = row["value"]
    match row["kind"]:
        case "counter":
            return _number(value)
        case "meter":
            return f"{_number(value['count'])} ({_number(value['rate'])}/s)"
        case "distribution":
            if not value["count"]:
                return "0 values"
            span = f"{_number(value['min'])} to {_number(value['max'])}"
            return f"{_number(value['count'])} values, {span}, mean {_number(value['mean'])}"
    if value is None:
        texts = sorted({text for text in row["subtasks"] if isinstance(text, str)})
        return ", ".join(texts) or "unknown"
    if value["min"] == value["max"]:
        return _number(value["min"])
    return f"{_number(value['min'])} to {_number(value['max'])}"


def _number(value: float) -> str:
    return f"{value:,}" if isinstance(value, int) else f"{value:,.4g}"


def _counted(number: int, one: str, many: str) -> str:
    return f"{number:,} {one if number == 1 else many}"
