"""Define the DataStream API, and the graphs that a program compiles to.

This package uses no event loop and no processes. Start reading at `environment.py` and
`streams/data_stream.py`, which contain the API. Then read `graph/job_graph.py`, the graph that a
program builds. Last, `graph/compile.py` compiles it to the execution graph, which the runtime runs.
Users import all public names from `penstock`.
"""
