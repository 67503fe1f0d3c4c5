"""Run a job inside the process of its program. (Flink: `MiniCluster`.)

This mode is for debuggers, coverage and fast tests. The engine is the same as with several
processes. All workers run in one event loop, and their connections are queues in memory instead of
sockets. The code of the job is still pickled with cloudpickle, so that each worker has its own
copies of the functions.

Programs use the module `executor`. The module `minicluster` runs one job.
"""
