"""Collect what happens to a job: its history, its metrics, its log and delayed snapshots."""
