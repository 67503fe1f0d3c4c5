"""Measure the time that records take through a job."""
