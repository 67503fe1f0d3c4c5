"""Run a chain of operators as one task, and take part in snapshots."""
