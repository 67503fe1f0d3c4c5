"""Keyed state in RocksDB: the database, its rows or blocks, and its checkpoints."""
