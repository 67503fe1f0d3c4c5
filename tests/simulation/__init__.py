"""A whole cluster inside one trio run, under a virtual clock and one seed.

`processes.py` stands in for what the operating system does (processes, connections, threads),
`job.py` is a job whose committed output can be checked record by record, and `cluster.py` runs
it, kills parts of it, and starts them again. The JobManager, the TaskManagers, the channels and
the store are the real ones.

`interleavings.py` is about less and tries it all: a few tasks, in every order of their steps.
"""
