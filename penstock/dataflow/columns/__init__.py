"""Columns in the API: batch functions, aggregations over columns, and Arrow batches.

Only functions of this folder import pyarrow, so a job without columns does not need it.
"""
