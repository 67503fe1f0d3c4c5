"""Graphs of a program: the job graph that it builds, and the execution graph that runs.

Start reading at `job_graph.py` and `compile.py`.
"""
