"""Run one execution attempt: its workers, its splits and its checkpoints.

All events of an attempt are handled in its event loop (`attempt_loop.py`). The worker pool, the
split server and the checkpoint driver post handlers to that loop. Start at `execution_attempt.py`.
"""
