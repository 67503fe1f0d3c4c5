"""Benchmarks: what the engine must reach, measured on the machine at hand.

    python -m bench                      lists them
    python -m bench wordcount --json     runs one and prints one JSON object

Each module is one benchmark: its docstring says exactly what is measured, `measure(...)` does it,
and results are checked, so that a figure of a run that lost or doubled a record is never printed.
What they share is in `harness` (running a job, figures) and `paced` (a source that keeps to a
schedule). `limit_wordcount` is a program without the engine, to compare with. How to read the
figures: `docs/inside/benchmarks.md`. This is NOT a test suite: nothing here fails because it is
slow.
"""
