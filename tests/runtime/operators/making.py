"""Makes an operator outside of a task, from its specification and its function."""

from __future__ import annotations

from typing import Any

from penstock.dataflow.graph.job_graph import Operator
from penstock.dataflow.operators.operator_spec import OperatorSpec
from penstock.runtime.operators.base import RunningOperator
from penstock.runtime.operators.building import OperatorPlace
from penstock.runtime.operators.context import OperatorContext
from penstock.runtime.operators.registry import build_operator


def make_operator(
    spec: OperatorSpec, function: Any, key_selector: Any, context: OperatorContext
) -> RunningOperator:
    operator = Operator(0, spec, "operator", function, key_selector=key_selector)
    return build_operator(OperatorPlace(operator, context))
