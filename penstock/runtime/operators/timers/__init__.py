"""Timers of keyed operators: when they are due, and how they are part of keyed state."""
