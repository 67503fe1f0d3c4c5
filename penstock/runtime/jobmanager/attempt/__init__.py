"""Run one execution attempt: its workers, its splits and its checkpoints.

Everything about an attempt happens in its loop (`attempt_loop.py`). The worker pool, the split
server and the checkpoint driver post to it. Start at `execution_attempt.py`.
"""
