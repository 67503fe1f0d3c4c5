"""The JobManager, the worker processes, channels and operators at work. trio lives here.

Not the protocols (`penstock.snapshot`), which are pure and are driven from here. Start reading at
`task.py` (how records flow), then `taskmanager.py`, `attempt.py` and `jobmanager.py`.
"""
