"""State machines that decide when a task takes its snapshot.

There is one state machine for each checkpointing mode.
"""
