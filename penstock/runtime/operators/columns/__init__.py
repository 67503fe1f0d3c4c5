"""Operators that work on columns: batch functions, and aggregations over columns."""
