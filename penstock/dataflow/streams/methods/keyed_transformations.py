"""The methods of a keyed stream that transform its records with keyed state."""

from __future__ import annotations

from typing import Any

from penstock.dataflow.errors import GraphError
from penstock.dataflow.functions import KeyedProcessFunction
from penstock.dataflow.streams.building import add_keyed_process
from penstock.dataflow.streams.methods.transformations import StreamTransformations
from penstock.dataflow.streams.operator_settings import declare_type
from penstock.dataflow.type_variables import T_co
from penstock.dataflow.types import check_type_info

__all__ = ["KeyedTransformations"]


class KeyedTransformations(StreamTransformations[T_co]):
    """Methods that add operators with keyed state."""

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
        return declare_type(self._transform(add_keyed_process, "Keyed Process", func), output_type)
