"""Collect the events and figures of a job for its client, its log and its report.

Start at `job_events.py`. The other modules create events, log them, or add up figures.
"""
