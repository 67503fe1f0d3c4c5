"""Hold keyed state in RocksDB: rows, blocks and checkpoints."""
