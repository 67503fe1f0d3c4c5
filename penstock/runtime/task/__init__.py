"""Run a chain of operators as one task, and take part in snapshots.

Start reading at `task.py`: its step, and the parts of a task. The folder `snapshots` holds a task's
part in snapshots, from the barrier to the acknowledgement, and the replay of logs. Channels are in
`penstock.runtime.network`, and operators in `penstock.runtime.operators`.
"""
