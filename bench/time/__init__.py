"""Measure windows, timers and keyed state."""
