"""Operators with two inputs: those of connected streams and of broadcast streams.

An operator with two inputs has a *side* for each input: an operator with one input that calls one
method of the user's function. The two sides share the context, and so the state, of the operator.

Start reading at `operator.py`. `sides.py` has the sides, and `broadcast.py` the contexts through
which functions use broadcast state.
"""
