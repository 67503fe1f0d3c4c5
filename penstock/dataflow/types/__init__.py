"""Define the types that PyFlink programs use: rows and type information."""

from __future__ import annotations

from penstock.dataflow.types.composite_types import RowTypeInfo, TupleTypeInfo
from penstock.dataflow.types.declared_types import Types
from penstock.dataflow.types.row import Row, RowKind
from penstock.dataflow.types.type_information import TypeInformation, check_type_info

__all__ = [
    "Row",
    "RowKind",
    "RowTypeInfo",
    "TupleTypeInfo",
    "TypeInformation",
    "Types",
    "check_type_info",
]
