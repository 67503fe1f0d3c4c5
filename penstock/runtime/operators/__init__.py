"""Apply the functions of a program to batches of records.

Start reading at `base.py`, then `stateless.py` and `keyed.py`. The loops that run once per record
are in `record_loops.py`. A source's input is in `source_input.py`.
"""
