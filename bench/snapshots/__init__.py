"""Measure snapshots and recovery."""
