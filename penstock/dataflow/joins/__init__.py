"""Define the descriptions of joins, which the operators of joins receive.

`penstock.dataflow.streams` has the methods that programs call, and
`penstock.runtime.operators.joins` the operators.
"""
