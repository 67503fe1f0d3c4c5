"""Operators, which apply the functions of a program to batches of records.

Start reading at `base.py`, then `stateless.py` and `keyed.py`. `record_loops.py` has the loops that
process each record. `source_input.py` has the input of source tasks.
"""
