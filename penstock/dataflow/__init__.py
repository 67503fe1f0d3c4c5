"""The DataStream API, and the graphs that a program compiles to. No event loop, no processes.

Start reading at `environment.py` and `stream.py` (how a program is written), then `graph.py` (what
it says) and `compile.py` (what is run). Users import all of it from `penstock`.
"""
