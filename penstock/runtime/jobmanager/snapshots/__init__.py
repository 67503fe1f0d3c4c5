"""Publish snapshots, commit the output that they stage, and plan the restore.

A run begins with `restore_planner.py`. The attempts of the run publish their snapshots through
`snapshot_publisher.py`, which passes the committables to `pending_commits.py`.
"""
