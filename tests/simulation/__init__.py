"""A whole cluster inside one trio run, under a virtual clock and one seed.

`penstock.testing.simulation` stands in for the operating system (processes, connections, threads),
`job.py` is a job whose committed output can be checked record by record, and `cluster.py` runs
it, kills parts of it, and starts them again. The JobManager, the TaskManagers, the channels and
the store are the real ones.

`tasks.py` is about less: the tasks of a small job, driven one step at a time. `lineage.py` has
programs for them whose result is known, `interleavings.py` tries every order of their steps,
`programs.py` draws programs and orders by chance, and `mutants.py` has what must be found out.
`protocol_model.py` (of loops) and `mode_model.py` (of each checkpointing mode, on the jobs of
`mode_jobs.py`) have the protocols alone, on the model channels of `execution.py`.
"""
