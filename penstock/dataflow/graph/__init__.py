"""Define the job graph that a program builds, and the execution graph that the runtime runs.

Start reading at `job_graph.py` and `compile.py`.
"""
