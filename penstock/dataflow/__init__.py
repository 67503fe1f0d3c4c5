"""The DataStream API, and the graphs that a program compiles to. No event loop, no processes.

Start reading at `environment.py` and `stream.py` (how a program is written), then `graph.py` (what
it says) and `compile.py` (what is run); loops are in `feedback.py` and `loops.py`. Users import all
of it from `penstock`.
"""
