"""Decide when a task takes its snapshot: one state machine per checkpointing mode."""
