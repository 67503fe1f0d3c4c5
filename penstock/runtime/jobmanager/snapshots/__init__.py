"""Publish the snapshots of a job, commit what they stage, and plan what to restore."""
