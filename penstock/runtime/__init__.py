"""Run jobs: the JobManager, its workers, channels and operators. Only this package uses trio.

The snapshot protocols (`penstock.snapshot`) are pure, and are driven from here. Start reading at
`task/task.py`, which shows how records flow. Then read `taskmanager/taskmanager.py` and
`jobmanager/jobmanager.py`. Each folder uses only folders that stand below it; the order is in
pyproject.toml.
"""
