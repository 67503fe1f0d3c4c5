"""Define the job graph and the execution graph of a program.

A program builds the job graph. It is compiled to the execution graph, which the runtime runs.

Start reading at `job_graph.py` and `compile.py`.
"""
