"""Run a chain of operators as one task, and take the task's snapshots.

Start reading at `task.py`, which lists the parts of a task. The folder `snapshots` has the code for
snapshots, from the barrier to the acknowledgement, and for the replay of logs. Channels are in
`penstock.runtime.network`, and operators in `penstock.runtime.operators`.
"""
