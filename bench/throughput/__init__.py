"""Measure records per second."""
