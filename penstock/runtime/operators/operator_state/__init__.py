"""Implement operator state for the functions that use it.

`states.py` has the state objects, `store.py` the store that returns them, and `checkpointing.py`
calls the functions at the start and at each barrier.
"""
