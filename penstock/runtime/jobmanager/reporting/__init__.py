"""Collect what happens to a job, for its client, its log and its report.

Start at `job_events.py`: the other modules make, log or add up its events.
"""
