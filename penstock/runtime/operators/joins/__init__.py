"""Operators that join two streams. They are operators with two inputs; see `two_inputs`."""
