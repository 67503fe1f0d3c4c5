"""Run one execution attempt: its workers, splits and checkpoints, until the first failure.

Everything about an attempt happens in its loop (`attempt_loop.py`). The worker pool, the split
server and the checkpoint driver post to it. Start at `execution_attempt.py`.
"""
