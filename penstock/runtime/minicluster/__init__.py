"""Run a job inside the process of its program. (Flink: `MiniCluster`.)

It is for debuggers, coverage and fast tests. The engine is the same as in several processes: each
worker is a group of tasks of one event loop instead of a process, and its connections are memory
instead of sockets. The code still passes through cloudpickle, so that each worker has functions of
its own. `executor` is what a program uses, and `minicluster` runs one job.
"""
