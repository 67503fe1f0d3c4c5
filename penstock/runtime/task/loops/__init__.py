"""Event time in the tasks of a loop. Start at `loop_watermarks.py`."""
