"""Run the asynchronous functions of users: in asyncio, in trio, or in threads.

`caller.py` has the interface, and `caller_factory.py` creates the callers of a worker. The operator
that uses them is in `penstock.runtime.operators.async_wait`.
"""
