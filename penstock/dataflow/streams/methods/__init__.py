"""The methods of streams, by subject.

Each module has a base class of streams. It says what its methods do, and which operators they add.
`data_stream.py` joins the base classes, and gives the methods the types of records.
"""
