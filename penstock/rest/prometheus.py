"""Show metrics in the format of Prometheus.

A name is `penstock_`, Flink's scope, and Flink's name of the metric. So a dashboard for Flink works
with another prefix. Like Flink's reporter, all metrics are gauges, so that their names have no
endings.

The text is written here, because a large job has 100,000 values: prometheus-client took ten times
as long for them. Its parser reads the text in the tests.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping

from penstock.rest.measurements import Measurement, MetricScope

#: The media type of the format.
MEDIA_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_BAD = re.compile(r"[^a-zA-Z0-9_]")
_ESCAPES = str.maketrans({"\\": r"\\", "\n": r"\n", '"': r"\""})


def exposition(found: Iterable[Measurement]) -> bytes:
    """Return metrics as the text that Prometheus reads. Metrics that are texts are left out."""
    names: dict[tuple[MetricScope, str], str] = {}
    families: dict[str, list[str]] = {}
    labels: Mapping[str, str] | None = None
    shown = ""
    for one in found:
        if isinstance(one.value, str):
            continue
        key = one.scope, one.name
        name = names.get(key)
        if name is None:
            name = names[key] = f"penstock_{one.scope.value}_{_BAD.sub('_', one.name)}"
            # Two names may differ only in characters that are replaced.
            families.setdefault(name, _head(name, one.name))
        if one.labels is not labels:
            # The values of a task follow each other, and have the same labels.
            labels, shown = one.labels, _labels(one.labels)
        of_value = _labels(_with_variables(one)) if one.variables else shown
        families[name].append(f"{name}{of_value} {_number(one.value)}\n")
    return "".join(line for lines in families.values() for line in lines).encode()


def _head(name: str, text: str) -> list[str]:
    help = text.replace("\\", r"\\").replace("\n", r"\n")
    return [f"# HELP {name} {help}\n# TYPE {name} gauge\n"]


def _with_variables(one: Measurement) -> dict[str, str]:
    variables = {_label(key): value for key, value in (one.variables or {}).items()}
    return {**variables, **one.labels}


def _labels(labels: Mapping[str, str]) -> str:
    pairs = (f'{name}="{value.translate(_ESCAPES)}"' for name, value in sorted(labels.items()))
    return f"{{{','.join(pairs)}}}" if labels else ""


def _label(key: str) -> str:
    name = _BAD.sub("_", key)
    return f"_{name}" if not name or name[0].isdigit() else name


def _number(value: float) -> str:
    if math.isfinite(value):
        return repr(value)
    return "NaN" if math.isnan(value) else "+Inf" if value > 0 else "-Inf"
