"""Specialize the loops of operators for the user functions that they call."""
