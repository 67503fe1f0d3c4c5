"""The methods of streams, by subject.

Each module has a base class of streams. The class documents its methods, and defines which
operators they add. `data_stream.py` combines the base classes, and declares the record types of the
methods.
"""
