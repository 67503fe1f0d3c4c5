"""The DataStream API, and the graphs that a program compiles to. No event loop, no processes.

Start reading at `environment.py` and `stream.py`, with which programs are written. Then read
`graph/job_graph.py`, which they build, and `graph/compile.py`, which turns it into the execution
graph that runs. Users import all public names from `penstock`.
"""
