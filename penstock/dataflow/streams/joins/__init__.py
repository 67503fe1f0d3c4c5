"""The methods that join streams, and the objects that these methods return.

`stream_joins.py` has the methods of `DataStream` and `KeyedStream`. Each kind of join has a module
of its own.
"""
