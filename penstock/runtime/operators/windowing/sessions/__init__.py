"""The operator of sessions. Start reading at `session_loops.py`."""
