"""The methods of a keyed stream that transform its records with keyed state."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from penstock.dataflow.async_io.async_operation import AsyncOperation
from penstock.dataflow.errors import GraphError
from penstock.dataflow.functions import Function, KeyedProcessFunction
from penstock.dataflow.graph.job_graph import OperatorKind
from penstock.dataflow.streams.methods.transformations import StreamTransformations
from penstock.dataflow.streams.operator_settings import declare_type
from penstock.dataflow.type_variables import T_co
from penstock.dataflow.types import check_type_info

__all__ = ["KeyedTransformations"]


class KeyedTransformations(StreamTransformations[T_co]):
    """Methods that add operators with keyed state."""

    #: The function that returns the key of a record.
    _selector: Any

    def process(self, func: Any, output_type: Any = None) -> Any:
        """Add an operator that runs a `KeyedProcessFunction`, which has keyed state.

        Raises:
            GraphError: if `func` is not a `KeyedProcessFunction`.
        """
        check_type_info("output_type", output_type)
        if not isinstance(func, KeyedProcessFunction):
            raise GraphError(
                f"process on a keyed stream takes a KeyedProcessFunction, not {func!r}"
            )
        return declare_type(
            self._keyed(OperatorKind.KEYED_PROCESS, "Keyed Process", func), output_type
        )

    def _wait_for(self, operation: AsyncOperation) -> Any:
        return super()._wait_for(replace(operation, key_selector=self._selector))

    def _transform(
        self, kind: OperatorKind, name: str, function: Any, key_selector: Any = None
    ) -> Any:
        if isinstance(function, Function) and type(function).open is not Function.open:
            # The function may get state in `open`, so it needs the keys of the records.
            with_keys = kind.with_keys
            if with_keys is not None:
                kind, key_selector = with_keys, self._selector
        return super()._transform(kind, name, function, key_selector)

    def _keyed(self, kind: OperatorKind, name: str, function: Any) -> Any:
        return self._transform(kind, name, function, self._selector)
