"""A task's part in snapshots: capture at the barrier, writing in the background, and replay."""
