"""Describe the joins of streams: what their operators need to know.

`penstock.dataflow.streams.joins` has the methods that programs call, and
`penstock.runtime.operators.joins` the operators.
"""
