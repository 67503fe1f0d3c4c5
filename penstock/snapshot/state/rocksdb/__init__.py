"""Keyed state in RocksDB: the database, and the linked files of its checkpoints.

`penstock.snapshot.state.cold` has the rows and blocks, which are the same in each database.
"""
